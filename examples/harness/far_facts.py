"""Data and metric of far_facts.yaml: questions about facts in whole plays, and whether an answer has the fact."""

from dataclasses import asdict

import datasets

from unlimiformer.tasks import task


def load_plays(questions: int = 8, kind: str = "play-facts", **_: object) -> dict[str, datasets.Dataset]:
    """Generate the test split.

    Parameters
    ----------
    questions, kind : set by `--metadata '{"questions": 2, "kind": "long-facts"}'`, for fewer questions or shorter texts
    """
    rows = [asdict(example) for example in task(kind).load(count=questions)]
    return {"test": datasets.Dataset.from_list(rows)}


def score_answer(doc: dict, results: list[str]) -> dict[str, float]:
    """Return accuracy 1 if the expected answer occurs in the generated text."""
    return {"acc": float(doc["answer"].lower() in results[0].lower())}
