"""Every selection and position policy of decoder-only models on the same facts: `python bench/needle_selections.py`.

The wordings are those that defaults are chosen with. Results go to bench/results/needle_selections.json.
"""

import json
import sys
from pathlib import Path

from unlimiformer import Unlimiformer
from unlimiformer.benchmarks.needle import needles, planted
from unlimiformer.catalogue import get_model, get_text
from unlimiformer.loading import load

MODEL = "smollm2-135m-instruct"
POLICIES = (
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


def main(tokens: int = 8000, depths: int = 6) -> None:
    """One memory for each layout; every policy answers the same questions."""
    get_model(MODEL)
    model, tokenizer = load(MODEL)
    text = get_text("shakespeare/hamlet").read_text()
    facts = needles(depths, "choosing")
    written = planted(text, facts, tokens, tokenizer)
    rows, memories = [], {}
    for selection, positions, top_k in POLICIES:
        with Unlimiformer(model, tokenizer, selection=selection, positions=positions, top_k=top_k) as u:
            layout = str(u.engine.layout)
            if layout not in memories:
                memories[layout] = u.index(written)
            answers = [
                u.generate(memories[layout], prompt=fact.question, max_new_tokens=24, do_sample=False).text
                for fact in facts
            ]
            right = sum(fact.answered_by(answer) for fact, answer in zip(facts, answers, strict=True))
            row = {"selection": selection, "positions": positions, "top_k": u.top_k, "right": right, "of": len(facts)}
            row |= {"bytes_a_token": memories[layout].nbytes / len(memories[layout]), "example": answers[0][:80]}
            rows.append(row)
            print(json.dumps(row), flush=True)
    about = {"model": MODEL, "tokens": tokens, "wordings": "choosing", "rows": rows}
    Path(__file__).with_name("results").joinpath("needle_selections.json").write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
