"""Every selection and position policy of decoder-only models on the same facts and on the same real questions.

`python bench/selections.py needles` asks for facts in the wordings that defaults are chosen with;
`python bench/selections.py questions FILE.jsonl` compares answers with references: a line is a JSON object with
"document" and "questions", a list of {"question", "answer"}. Results go to bench/results/selections_*.json.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from rouge_score.rouge_scorer import RougeScorer

from unlimiformer import Unlimiformer
from unlimiformer.benchmarks.needle import needles, planted
from unlimiformer.hub import get_model, get_text
from unlimiformer.hub.loading import load

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


def facts_in_a_play(tokens: int = 8000, depths: int = 6) -> None:
    """How many facts each policy answers."""
    model, tokenizer = load(get_model(MODEL))
    facts = needles(depths, "choosing")
    text = planted(get_text("shakespeare/hamlet").read_text(), facts, tokens, tokenizer)
    rows = []
    for about, answers in answered(model, tokenizer, {text: [fact.question for fact in facts]}, POLICIES, 24):
        right = sum(fact.answered_by(answer) for fact, answer in zip(facts, answers, strict=True))
        rows.append({**about, "right": right, "of": len(facts), "example": answers[0][:80]})
        keep("needles", rows, model=MODEL, tokens=tokens, wordings="choosing")


def real_questions(file: str, documents: int = 4, questions: int = 3) -> None:
    """How near each policy's answers are to the references, by ROUGE-1."""
    model, tokenizer = load(get_model(MODEL))
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()][:documents]
    asked = {line["document"]: [each["question"] for each in line["questions"][:questions]] for line in lines}
    wanted = [each["answer"] for line in lines for each in line["questions"][:questions]]
    scorer = RougeScorer(["rouge1"], use_stemmer=True)
    rows = []
    for about, answers in answered(model, tokenizer, asked, (("truncated", None, None), *POLICIES), 96):
        scores = [scorer.score(reference, answer)["rouge1"] for reference, answer in zip(wanted, answers, strict=True)]
        figures = {"rouge1": mean(s.fmeasure for s in scores), "recall": mean(s.recall for s in scores)}
        rows.append({**about, **figures, "of": len(wanted), "example": answers[0][:200]})
        keep("questions", rows, model=MODEL, file=Path(file).name, documents=documents)


def answered(model, tokenizer, asked: dict[str, list[str]], policies, new_tokens: int) -> Iterator[tuple[dict, list]]:
    """Each policy and its answers to all questions; documents are read once for each layout of memories."""
    memories: dict[tuple[str, str], object] = {}
    generation = {"max_new_tokens": new_tokens, "do_sample": False}
    for selection, positions, top_k in policies:
        plain = selection == "truncated"
        settings = {} if plain else {"selection": selection, "positions": positions, "top_k": top_k}
        answers = []
        with Unlimiformer(model, tokenizer, **settings) as u:
            for text, questions in asked.items():
                if plain:
                    ask = u.engine.truncated(text).ask
                    answers += [ask(question, **generation) for question in questions]
                    continue
                layout = (text, str(u.engine.layout))
                if layout not in memories:
                    memories[layout] = u.index(text)
                answers += [u.generate(memories[layout], prompt=q, **generation).text for q in questions]
            yield {"selection": selection, "positions": positions, "top_k": u.top_k}, answers


def keep(name: str, rows: list[dict], **about) -> None:
    """After every policy, so that an interruption loses nothing."""
    print(json.dumps(rows[-1]), flush=True)
    results = Path(__file__).with_name("results") / f"selections_{name}.json"
    results.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["needles"]
    if what == "needles":
        facts_in_a_play(*map(int, rest))
    else:
        real_questions(rest[0], *map(int, rest[1:]))
