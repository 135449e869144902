"""How often the first passage of an answer holds the fact that was asked for, and what provenance costs.

Run `python bench/provenance.py [tokens] [depths]`. After an interruption the same command continues with the next
model. Results go to bench/results/provenance.json.

Facts stand among distractor facts in plays, as in `unlimiformer bench needle`. Then answers of 32 tokens are timed
with and without provenance, in turns; the fastest of five counts.
"""

import sys
import time

from partial_run import PartialRun

from unlimiformer import Unlimiformer
from unlimiformer.hub import get_model, get_text
from unlimiformer.qa import DocumentQA, QuestionFormat
from unlimiformer.tasks.synthetic import generate_needles, plant_needles

MODELS = ("flan-t5-small-answers", "smollm2-135m-instruct")
PLAYS = ("hamlet", "macbeth", "othello", "lear")


def main(tokens: int = 16_000, depths: int = 8) -> None:
    """Measure every model and write the results."""
    run = PartialRun("provenance", models=MODELS, tokens=tokens, depths=depths)
    text = "\n\n".join(get_text(f"shakespeare/{play}").read_text() for play in PLAYS)
    for name in MODELS[len(run.rows) :]:
        run.add(measure(name, text, tokens, depths))
        print(run.rows[-1], flush=True)
    run.finish({"rows": run.rows})


def measure(name: str, text: str, tokens: int, depths: int) -> dict:
    """Ask one model for every fact, and count right answers and passages that hold the fact."""
    get_model(name)
    with Unlimiformer.from_pretrained(name) as u:
        facts = generate_needles(depths, "reported")
        qa = DocumentQA(u, plant_needles(text, facts, tokens, u.tokenizer), QuestionFormat.for_model(name))
        right = with_fact = 0
        for index, fact in enumerate(facts):
            print(f"{name}: question {index + 1} of {len(facts)}", flush=True)
            answer = qa.ask(fact.question, provenance=True, max_new_tokens=24, do_sample=False, num_beams=1)
            provenance = answer.output.provenance
            first = provenance.passages(1, 60)[0]
            passage = " ".join(provenance.memory.text[first.start : first.end].split())
            right += fact.answered_by(answer.text)
            with_fact += " ".join(fact.sentence.split()) in passage
        seconds_with, seconds_without = _times(qa, facts[0].question)
    return {
        "model": name,
        "tokens": tokens,
        "questions": len(facts),
        "right": right,
        "first_passage_has_the_fact": with_fact,
        "seconds_with": seconds_with,
        "seconds_without": seconds_without,
        "ratio": seconds_with / seconds_without,
    }


def _times(qa: DocumentQA, question: str) -> tuple[float, float]:
    """Return the seconds of an answer with and without provenance."""
    best = {True: float("inf"), False: float("inf")}
    settings = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False, "num_beams": 1}
    for _ in range(5):
        for provenance in best:
            started = time.perf_counter()
            qa.ask(question, provenance=provenance, **settings)
            best[provenance] = min(best[provenance], time.perf_counter() - started)
    return best[True], best[False]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
