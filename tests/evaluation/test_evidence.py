"""How much of the evidence a model saw."""

from __future__ import annotations

import pytest

from unlimiformer.evaluation.evidence import evidence_recall


def test_the_share_of_characters_that_were_seen():
    assert evidence_recall([(10, 20)], [(0, 15)]) == pytest.approx(50)
    assert evidence_recall([(10, 20), (30, 40)], [(0, 100)]) == pytest.approx(100)
    assert evidence_recall([(10, 20), (15, 30)], [(10, 20), (18, 20)]) == pytest.approx(50)
    assert evidence_recall([(10, 20)], []) == 0


def test_what_is_not_known_has_no_share():
    assert evidence_recall([], [(0, 5)]) is None
    assert evidence_recall([(0, 5)], None) is None
