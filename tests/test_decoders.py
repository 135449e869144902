"""Decoder-only models against the plain model: everything retrieved from one window must change nothing."""

from __future__ import annotations

import pytest
import torch
from tiny_decoders import DECODERS, VARIANTS, VOCABULARY, tiny_decoder

from unlimiformer import Unlimiformer, UnsupportedModelError
from unlimiformer.adapters.decoder_only import DECODERS as KNOWN

TOLERANCE = 2e-5
ALL = [*DECODERS, *VARIANTS]
REFUSED = ("falcon", "falcon, grouped", "gemma2", "gemma3_text", "mistral, sliding")
KEPT = ("blocks", "blocks-by-layer", "top-k")


def test_every_known_family_is_tested():
    assert set(DECODERS) == set(KNOWN)


def _prompt(seed: int = 0, document: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    head, tail = torch.randint(3, VOCABULARY, (5,)), torch.randint(3, VOCABULARY, (7,))
    return head, torch.randint(3, VOCABULARY, (document,)), tail


def _answer(u: Unlimiformer, head, document, tail, **generation):
    """What the engine generates for ids whose parts are known."""
    from unlimiformer.causal.prompts import Tail
    from unlimiformer.encoding import Source

    heads, documents, tails = (part if isinstance(part, list) else [part] for part in (head, document, tail))
    sources = [Source(d, h, {}) for d, h in zip(documents, heads, strict=True)]
    memories = u.engine.reader.read_sources(sources, u.engine.encode)
    with torch.no_grad():
        return u.engine._answer(memories, [Tail(t, t, t[:0]) for t in tails], generation, None)


class _Note:
    def __init__(self):
        self.steps = []

    def __call__(self, ids, scores):
        self.steps.append(scores.clone())
        return scores


@pytest.mark.parametrize("positions", ["consecutive", "as-encoded", "rescaled"])
@pytest.mark.parametrize("selection", ["reread", *KEPT])
@pytest.mark.parametrize("name", ALL)
def test_one_window_equals_the_plain_model(name, selection, positions):
    if selection == "reread" and positions != "consecutive":
        pytest.skip("re-reading has one kind of positions")
    model = tiny_decoder(name)
    if selection == "top-k" and name in REFUSED:
        with pytest.raises(UnsupportedModelError, match="tokens of their own"):
            Unlimiformer(model, selection=selection)
        return
    head, document, tail = _prompt()
    plain, ours = _Note(), _Note()
    ids = torch.cat((head, document, tail))[None]
    settings = {"max_new_tokens": 5, "do_sample": False}
    expected = model.generate(ids, logits_processor=[plain], **settings)[0, ids.shape[1] :]
    with Unlimiformer(model, selection=selection, positions=positions, block=8, top_k=64, window=64) as u:
        got = _answer(u, head, document, tail, logits_processor=[ours], **settings)[0]
    assert got.tolist() == expected.tolist()
    assert len(ours.steps) == 5
    for mine, theirs in zip(ours.steps, plain.steps, strict=True):
        assert (mine - theirs).abs().max() <= TOLERANCE * theirs.abs().max()
