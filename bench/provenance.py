"""Does the first passage hold the fact, and what does knowing it cost? `python bench/provenance.py [tokens] [depths]`.

Facts among rivals in plays, as `bench needle` has them, asked of the default models: for how many the first passage of
the attention has the fact. Then answers of 32 tokens with and without provenance, in turns, the best of five each.
Results go to bench/results/provenance.json.
"""

import json
import sys
import time
from pathlib import Path

from unlimiformer import Unlimiformer
from unlimiformer.benchmarks.needle import needles, planted
from unlimiformer.hub import get_model, get_text
from unlimiformer.qa import DocumentQA, QuestionFormat

MODELS = ("flan-t5-small-answers", "smollm2-135m-instruct")
PLAYS = ("hamlet", "macbeth", "othello", "lear")
RESULTS = Path(__file__).with_name("results") / "provenance.json"


def main(tokens: int = 16_000, depths: int = 8) -> None:
    """Measures every model and keeps the figures."""
    text = "\n\n".join(get_text(f"shakespeare/{play}").read_text() for play in PLAYS)
    rows = []
    for name in MODELS:
        get_model(name)
        with Unlimiformer.from_pretrained(name) as u:
            facts = needles(depths, "reported")
            talk = DocumentQA(u, planted(text, facts, tokens, u.tokenizer), QuestionFormat.for_model(name))
            found = []
            for fact in facts:
                reply = talk.ask(fact.question, provenance=True, max_new_tokens=24, do_sample=False, num_beams=1)
                looked = reply.output.provenance
                first = looked.passages(1, 60)[0]
                held = " ".join(looked.memory.text[first.start : first.end].split())
                found.append((fact.answered_by(reply.text), " ".join(fact.sentence.split()) in held))
            with_it, without = _times(talk, facts[0].question)
        row = {"model": name, "tokens": tokens, "questions": len(found), "right": sum(right for right, _ in found)}
        row |= {"first_passage_has_the_fact": sum(there for _, there in found)}
        row |= {"seconds_with": with_it, "seconds_without": without, "ratio": with_it / without}
        print(row, flush=True)
        rows.append(row)
        RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def _times(talk: DocumentQA, question: str) -> tuple[float, float]:
    """Seconds of an answer with and without provenance."""
    best = {True: float("inf"), False: float("inf")}
    settings = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False, "num_beams": 1}
    for _ in range(5):
        for wanted in best:
            started = time.perf_counter()
            talk.ask(question, provenance=wanted, **settings)
            best[wanted] = min(best[wanted], time.perf_counter() - started)
    return best[True], best[False]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
