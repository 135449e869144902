"""Decoder-only models against the plain model: everything retrieved from one window must change nothing."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import transformers
from tiny_causal_models import DECODERS, VARIANTS, VOCABULARY, one_head_matches, tiny_decoder

from unlimiformer import Unlimiformer, UnlimiformerError, UnsupportedModelError
from unlimiformer.adapters.causal import DECODERS as KNOWN
from unlimiformer.engines.causal.positions import POSITIONS

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
    from unlimiformer.memory.encode import TokenizedInput

    from unlimiformer.engines.causal.engine import Query
    from unlimiformer.engines.causal.prompts import PromptSuffix

    heads, documents, tails = (part if isinstance(part, list) else [part] for part in (head, document, tail))
    sources = [TokenizedInput(d, h, {}) for d, h in zip(documents, heads, strict=True)]
    memories = u.engine.reader.read_sources(sources, u.engine.encode)
    asked = [Query(memory, PromptSuffix(t, t, t[:0])) for memory, t in zip(memories, tails, strict=True)]
    with torch.no_grad():
        return u.engine._answer(asked, generation)


class _Note:
    def __init__(self):
        self.steps = []

    def __call__(self, ids, scores):
        self.steps.append(scores.clone())
        return scores


@pytest.mark.parametrize(("selection", "positions"), [("reread", None), *product(KEPT, POSITIONS)])
@pytest.mark.parametrize("name", ALL)
def test_one_window_equals_the_plain_model(name, selection, positions):
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


GENERATIONS = {
    "beams": {"num_beams": 3, "max_new_tokens": 5},
    "several": {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 4},
    "sampled": {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 5, "top_k": 20},
    "penalty": {"repetition_penalty": 1.3, "max_new_tokens": 5},
}


@pytest.mark.parametrize("how", GENERATIONS)
@pytest.mark.parametrize("selection", ["reread", *KEPT])
def test_all_of_generate(selection, how):
    model, (head, document, tail) = tiny_decoder("llama"), _prompt()
    ids = torch.cat((head, document, tail))[None]
    settings = {"do_sample": False, **GENERATIONS[how]}
    torch.manual_seed(7)
    expected = model.generate(ids, **settings)[:, ids.shape[1] :]
    with Unlimiformer(model, selection=selection, block=8, top_k=64, window=64) as u:
        if how == "penalty" and selection == "top-k":
            return  # the penalty is for tokens that the model was given: these differ
        torch.manual_seed(7)
        got = _answer(u, head, document, tail, **settings)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("selection", ["reread", *KEPT])
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "qwen3", "smollm3"])
def test_a_batch_equals_its_rows(name, selection):
    """Documents, heads and tails of different lengths, in one window and in many."""
    model = tiny_decoder(name)
    prompts = [_prompt(seed, document) for seed, document in ((1, 30), (2, 150), (3, 260))]
    heads, documents, tails = (list(parts) for parts in zip(*prompts, strict=True))
    heads[1], tails[2] = heads[1][:3], tails[2][:4]
    settings = {"max_new_tokens": 5, "do_sample": False}
    with Unlimiformer(model, selection=selection, block=8, top_k=32, window=64, dtype="float32") as u:
        together = _answer(u, heads, documents, tails, **settings)
        alone = [_answer(u, *parts, **settings)[0] for parts in zip(heads, documents, tails, strict=True)]
    assert together.tolist() == [row.tolist() for row in alone]


@pytest.mark.parametrize("selection", ["reread", *KEPT])
def test_a_long_document_is_seen(selection):
    """What is retrieved changes the answer: another document, another output; all of it is not needed."""
    model, (head, document, tail) = tiny_decoder("llama"), _prompt(document=300)
    settings = {"max_new_tokens": 8, "do_sample": False}
    with Unlimiformer(model, selection=selection, block=8, top_k=32, window=64) as u:
        one = _answer(u, head, document, tail, **settings)
        other = _answer(u, head, document.flip(0), tail, **settings)
    assert one.tolist() != other.tolist()


@pytest.mark.parametrize("selection", ["reread", *KEPT])
def test_the_cache_changes_nothing_or_is_needed(selection):
    model, (head, document, tail) = tiny_decoder("llama"), _prompt(document=300)
    settings = {"max_new_tokens": 6, "do_sample": False}
    with Unlimiformer(model, selection=selection, block=8, top_k=32, window=64) as u:
        with_cache = _answer(u, head, document, tail, use_cache=True, **settings)
        if selection == "reread":
            without = _answer(u, head, document, tail, use_cache=False, **settings)
            assert with_cache.tolist() == without.tolist()
        else:
            with pytest.raises(UnlimiformerError, match="use_cache"):
                _answer(u, head, document, tail, use_cache=False, **settings)


def test_beams_of_the_models_own_configuration():
    model, (head, document, tail) = tiny_decoder("llama"), _prompt()
    model.generation_config.num_beams = 3
    ids = torch.cat((head, document, tail))[None]
    config = transformers.GenerationConfig(max_new_tokens=4)
    expected = model.generate(ids, generation_config=config)[:, ids.shape[1] :]
    with Unlimiformer(model, selection="blocks", block=8, top_k=64, window=64) as u:
        got = _answer(u, head, document, tail, generation_config=config)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("layers", [(0,), (1, 2)])
def test_layers_without_heads_that_choose_see_what_others_chose(layers):
    model, (head, document, tail) = tiny_decoder("llama"), _prompt(document=150)
    with Unlimiformer(model, selection="blocks-by-layer", layers=layers, block=8, top_k=32, window=64) as u:
        assert _answer(u, head, document, tail, max_new_tokens=3, do_sample=False).shape == (1, 3)


@pytest.mark.parametrize("blocks", [2, 3, 5, 8, 40])
def test_a_block_that_stands_out_is_clear(blocks):
    from unlimiformer.engines.causal.block_scorer import clear

    scores = torch.randn(4, blocks, generator=torch.Generator().manual_seed(0))
    scores[:, 1] += 50
    found = clear(scores)
    assert int(found.argmax()) == 1 and (found >= 0).all()


def test_the_closer_look_is_the_questions_likelihood():
    """Against one pass over each block by itself."""
    from unlimiformer.engines.causal.block_scorer import BlockScorer

    model = tiny_decoder("llama")
    lead, question, before = torch.arange(3, 8), torch.arange(20, 26), torch.arange(40, 43)
    blocks = [torch.randint(3, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)) for n in (8, 8, 5, 8)]
    with Unlimiformer(model, block=8, top_k=32) as u, torch.no_grad():
        found = BlockScorer(u.engine.decoder, [(0, 0)], 8).rerank(lead, blocks, before, question)
        for block, got in zip(blocks, found, strict=True):
            ids = torch.cat((lead, block, before, question))
            logs = model(ids[None]).logits[0].log_softmax(-1)
            at = range(ids.shape[0] - 6, ids.shape[0])
            assert float(got) == pytest.approx(sum(float(logs[i - 1, ids[i]]) for i in at), abs=1e-3)


def test_windows_keep_what_a_slow_reading_keeps():
    """Keys and values of a long document, window by window, against the plain model's own cache."""
    from transformers import DynamicCache
    from unlimiformer.memory.encode import TokenizedInput

    from unlimiformer.text.windows import plan_windows

    model, (head, document, _) = tiny_decoder("llama"), _prompt(document=150)
    with Unlimiformer(model, selection="blocks", block=8, top_k=32, window=64, dtype="float32") as u:
        engine = u.engine
        (memory,) = engine.reader.read_sources([TokenizedInput(document, head, {})], engine.encode)
        for window in plan_windows(150, 64 - head.shape[0], 0.25, causal=True):
            cache = DynamicCache()
            ids = torch.cat((head, document[window.start : window.end]))[None]
            model.model(ids, past_key_values=cache)
            inside = slice(head.shape[0] + window.keep_start - window.start, None)
            kept = slice(head.shape[0] + window.keep_start, head.shape[0] + window.keep_end)
            for layer, view in enumerate(engine.decoder.attentions):
                keys, values = engine.layout.keys_and_values(memory.store.rows_at(kept), layer)
                turned = view.rotate(keys, torch.arange(ids.shape[1])[inside])
                assert torch.allclose(turned, cache.layers[layer].keys[0][:, inside], atol=1e-5)
                assert torch.allclose(values, cache.layers[layer].values[0][:, inside], atol=1e-5)


def test_what_is_kept_is_the_smaller():
    """Grouped heads keep keys and values, many heads their layer's input; re-reading keeps a few heads' keys."""
    for name, kind, numbers in (("llama", "keys and values", 2 * 2 * 8), ("llama, all heads", "inputs", 32)):
        with Unlimiformer(tiny_decoder(name), selection="blocks", block=8, top_k=32) as u:
            assert {part.kind for part in u.engine.layout.parts.values()} == {kind}
            assert u.engine.layout.width == 3 * numbers
    with Unlimiformer(tiny_decoder("llama"), block=8, top_k=32, layers=(1,), heads=(0, 1)) as u:
        assert u.engine.layout.width == 8, "two heads of one group share a key of eight numbers"


def test_top_k_is_the_slow_obvious_way():
    """Each head's own best tokens at one step, against attention computed by hand over the plain projections."""
    model, (head, document, tail) = tiny_decoder("llama"), _prompt(document=40)
    note = _Note()
    with Unlimiformer(model, selection="top-k", positions="as-encoded", top_k=6, window=64, layers=(2,)) as u:
        _answer(u, head, document, tail, logits_processor=[note], max_new_tokens=1, do_sample=False)
        got = note.steps[0][0]
        decoder = u.engine.decoder
        # the first layers see head and tail only, as far apart as they are; the last one adds its own hits
        places = torch.cat((torch.arange(5), torch.arange(7) + 45))
        ids = torch.cat((head, tail))[None]
        view = decoder.attentions[2]
        read = decoder.inputs(torch.cat((head, document))[None], [2])[2][:, 5:]
        far = view.project(read)
        far_keys, far_values = view.rotate(far.keys[0], torch.arange(40) + 5), far.values[0]
        original = view.module.forward

        def forward(hidden_states, **_):
            view.module.forward = original
            near = view.project(hidden_states)
            queries = view.rotate(near.queries[0], places)
            keys = view.rotate(near.keys[0], places)
            out = torch.zeros_like(queries)
            for h in range(view.heads):
                for t in range(12):
                    local = queries[h, t] @ keys[h // 2, : t + 1].T * view.scaling
                    scores = queries[h, t] @ far_keys[h // 2].T * view.scaling
                    if t < 5:  # the head of the prompt was read before the document
                        scores = scores[:0]
                    best, at = scores.topk(min(6, scores.shape[0]))
                    weights = torch.cat((local, best)).softmax(-1)
                    values = torch.cat((near.values[0][h // 2, : t + 1], far_values[h // 2][at]))
                    out[h, t] = weights @ values
            return view.module.o_proj(out.transpose(0, 1).flatten(1))[None], None

        view.module.forward = forward
        try:
            with torch.no_grad():
                expected = model(ids, position_ids=places[None]).logits[0, -1]
        finally:
            view.module.__dict__.pop("forward", None)
    assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max()


def test_retrieving_heads_are_found(monkeypatch, tmp_path):
    """A head that was made to compare what tokens are, whatever their places, is ranked first; the ranking is kept."""
    from unlimiformer.engines.causal import retrieval_heads as heads

    monkeypatch.setenv("UNLIMIFORMER_CACHE", str(tmp_path))
    model = one_head_matches()
    decoder = Unlimiformer(model, block=8, top_k=32).engine.decoder
    ranked = heads.retrieving_heads(decoder, 8)
    assert len(ranked) == 12 and len(set(ranked)) == 12
    assert ranked[0] == (0, 2)
    monkeypatch.setattr(heads, "rank_heads", lambda *_: pytest.fail("it was kept"))
    assert heads.retrieving_heads(decoder, 8) == ranked


def test_long_prompts_of_the_models_own_generate():
    """Prompts beyond the limit are read; others take the model's own path; the method is put back."""
    model = tiny_decoder("llama")
    torch.manual_seed(3)
    short, long = torch.randint(3, VOCABULARY, (1, 50)), torch.randint(3, VOCABULARY, (2, 700))
    settings = {"max_new_tokens": 4, "do_sample": False}
    plain = model.generate(short, **settings)
    with Unlimiformer(model, block=8, top_k=32, window=64):
        assert model.generate(short, **settings).tolist() == plain.tolist()
        made = model.generate(input_ids=long, attention_mask=torch.ones_like(long), **settings)
        assert made.shape == (2, 704) and made[:, :700].tolist() == long.tolist()
        beams = model.generate(long, num_beams=2, num_return_sequences=2, **settings)
        assert beams.shape == (4, 704)
        assert model.generate(long, max_length=710, do_sample=False).shape == (2, 710)
        with pytest.raises(UnlimiformerError, match="return_dict_in_generate"):
            model.generate(long, return_dict_in_generate=True, **settings)
    assert "generate" not in model.__dict__


REFUSALS = [
    ({"dtype": "int8"}, "int8"),
    ({"store": "cells"}, "exact"),
    ({"window": 4096}, "4096"),
    ({"positions": "rescaled"}, "side by side"),
    ({"layers": (9,)}, "layers"),
    ({"heads": (7,)}, "heads"),
    ({"top_k": 8}, "block"),
    ({"top_k": 4096}, "4096"),
]


@pytest.mark.parametrize(("settings", "named"), REFUSALS, ids=lambda value: str(value))
def test_settings_that_do_not_fit_are_refused(settings, named):
    model = tiny_decoder("llama")
    with pytest.raises(UnlimiformerError, match=named):
        Unlimiformer(model, **settings)
    assert "generate" not in model.__dict__


def test_other_models_are_refused_by_name():
    import transformers as hf

    with pytest.raises(UnsupportedModelError, match="gpt2"):
        Unlimiformer(hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=VOCABULARY)))
    common = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    with pytest.raises(UnsupportedModelError, match="ALiBi"):
        Unlimiformer(hf.FalconForCausalLM(hf.FalconConfig(alibi=True, **common)))
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = hf.LlamaConfig(**common, intermediate_size=32, rope_parameters=rope)
    with pytest.raises(UnsupportedModelError, match="dynamic"):
        Unlimiformer(hf.LlamaForCausalLM(config))
