"""Compares every selection and position policy of decoder-only models on the same questions.

`python bench/selections.py needles [tokens] [depths]` asks for facts in a play, in the wordings that are used to choose
defaults. `python bench/selections.py questions FILE.jsonl [documents] [questions]` compares answers with references:
each line is a JSON object with "document" and "questions", a list of {"question", "answer"}.

After an interruption the same command continues with the next policy. Results go to bench/results, to
selections_needles.json and selections_questions.json.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from partial_run import PartialRun
from rouge_score.rouge_scorer import RougeScorer

from unlimiformer import Unlimiformer
from unlimiformer.hub import get_model, get_text
from unlimiformer.hub.loading import load
from unlimiformer.tasks.synthetic import generate_needles, plant_needles

MODEL = "smollm2-135m-instruct"
Policy = tuple[str, str | None, int | None]
POLICIES: tuple[Policy, ...] = (  # selection, positions, top_k
    ("reread", None, None),
    ("blocks", "consecutive", 256),
    ("blocks", "consecutive", 1024),
    ("blocks", "as-encoded", 256),
    ("blocks", "rescaled", 256),
    ("blocks-by-layer", "consecutive", 256),
    ("top-k", "consecutive", 64),
    ("top-k", "as-encoded", 64),
    ("top-k", "rescaled", 64),
)
TRUNCATED: Policy = ("truncated", None, None)  # the plain model


def compare_on_facts(tokens: int = 8000, depths: int = 6) -> None:
    """Count the facts in a play that each policy answers."""
    settings = {"model": MODEL, "tokens": tokens, "wordings": "choosing"}
    run = PartialRun("selections_needles", **settings, depths=depths)
    model, tokenizer = load(get_model(MODEL))
    facts = generate_needles(depths, "choosing")
    text = plant_needles(get_text("shakespeare/hamlet").read_text(), facts, tokens, tokenizer)
    questions = {text: [fact.question for fact in facts]}
    for policy, answers in answer_all(model, tokenizer, questions, POLICIES[len(run.rows) :], 24):
        right = sum(fact.answered_by(answer) for fact, answer in zip(facts, answers, strict=True))
        run.add({**policy, "right": right, "of": len(facts), "example": answers[0][:80]})
        print(json.dumps(run.rows[-1]), flush=True)
    run.finish({**settings, "rows": run.rows})


def compare_on_questions(file: str, documents: int = 4, questions: int = 3) -> None:
    """Compare the answers of each policy with references, by ROUGE-1."""
    settings = {"model": MODEL, "file": Path(file).name, "documents": documents}
    run = PartialRun("selections_questions", **settings, questions=questions)
    model, tokenizer = load(get_model(MODEL))
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()][:documents]
    by_document = {line["document"]: [item["question"] for item in line["questions"][:questions]] for line in lines}
    references = [item["answer"] for line in lines for item in line["questions"][:questions]]
    scorer = RougeScorer(["rouge1"], use_stemmer=True)
    policies = (TRUNCATED, *POLICIES)
    for policy, answers in answer_all(model, tokenizer, by_document, policies[len(run.rows) :], 96):
        pairs = zip(references, answers, strict=True)
        scores = [scorer.score(reference, answer)["rouge1"] for reference, answer in pairs]
        means = {"rouge1": mean(s.fmeasure for s in scores), "recall": mean(s.recall for s in scores)}
        run.add({**policy, **means, "of": len(references), "example": answers[0][:200]})
        print(json.dumps(run.rows[-1]), flush=True)
    run.finish({**settings, "rows": run.rows})


def answer_all(
    model: Any, tokenizer: Any, questions: dict[str, list[str]], policies: Sequence[Policy], new_tokens: int
) -> Iterator[tuple[dict, list[str]]]:
    """Yield each policy with its answers to the questions of all documents.

    A document is indexed once for each layout of the memory, since policies that share a layout can share memories.
    """
    memories: dict[tuple[str, str], Any] = {}
    generation = {"max_new_tokens": new_tokens, "do_sample": False}
    for selection, positions, top_k in policies:
        truncated = selection == "truncated"
        settings = {} if truncated else {"selection": selection, "positions": positions, "top_k": top_k}
        answers = []
        with Unlimiformer(model, tokenizer, **settings) as u:
            for text, document_questions in questions.items():
                if truncated:
                    texts = [text] * len(document_questions)
                    answers += u.engine.truncated_generate(texts, document_questions, generation)
                    continue
                key = (text, str(u.engine.layout))
                if key not in memories:
                    memories[key] = u.index(text)
                answers += [u.generate(memories[key], prompt=q, **generation).text for q in document_questions]
            yield {"selection": selection, "positions": positions, "top_k": u.top_k}, answers


if __name__ == "__main__":
    command, *arguments = sys.argv[1:] or ["needles"]
    if command == "needles":
        compare_on_facts(*map(int, arguments))
    else:
        compare_on_questions(arguments[0], *map(int, arguments[1:]))
