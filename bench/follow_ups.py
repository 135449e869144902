"""Follow-up questions of `bench/follow_ups.jsonl` against the same questions written out in full.

`python bench/follow_ups.py FAIRYTALEQA_VAL.jsonl` asks each question of the file about its story: the follow-up behind
the question before it, the same in full, and the follow-up alone. Word F1 against the answers; `-o FILE` keeps them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from unlimiformer import Unlimiformer
from unlimiformer.evaluation.metrics import F1
from unlimiformer.hub import get_model
from unlimiformer.qa import Conversation, DocumentQA, QuestionFormat

MODEL = "qwen2.5-coder-0.5b-answers"
PAIRS = Path(__file__).with_name("follow_ups.jsonl")


def main() -> None:
    """Ask every question in three ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stories", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    documents = {row["id"]: row["document"] for row in map(json.loads, options.stories.open())}
    get_model(MODEL)
    wrapped = Unlimiformer.from_pretrained(MODEL)
    rows = []
    for pair in map(json.loads, PAIRS.open()):
        document = DocumentQA(wrapped, wrapped.index(documents[pair["story"]]), QuestionFormat.for_model(MODEL))
        conversation = Conversation(document)
        first = conversation.ask(pair["first"]).text
        answers = {
            "conversation": conversation.ask(pair["follow_up"]).text,
            "in full": document.ask(pair["full"]).text,
            "alone": document.ask(pair["follow_up"]).text,
        }
        rows.append({**pair, "first_answer": first, "understood": conversation.turns[-1].question, **answers})
        print(json.dumps(rows[-1], ensure_ascii=False, indent=1), flush=True)
    references = [row["answers"] for row in rows]
    scores = {
        way: mean(F1().scores([row[way] for row in rows], references)["f1"])
        for way in ("conversation", "in full", "alone")
    }
    print(scores)
    if options.output is not None:
        options.output.write_text(json.dumps({"f1": scores, "questions": rows}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
