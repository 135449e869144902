"""Which blocks of a document are selected for a question."""

from __future__ import annotations

import itertools

import pytest
import torch
from causal_helpers import generate, random_prompt
from tiny_causal_models import tiny_decoder

from unlimiformer import Unlimiformer
from unlimiformer.engines.causal.prompts import PromptSuffix
from unlimiformer.engines.causal.selection import PassageSelector, SelectedTokens, TopBlocks
from unlimiformer.engines.passage_ranking import PassageIndex
from unlimiformer.memory.encode import TokenizedInput
from unlimiformer.text.passages import PassageSplitter


def test_tokens_of_spans_carry_the_weight_of_their_span():
    selected = SelectedTokens.from_spans({(4, 8): 3.0, (10, 12): 1.0}, 20)
    assert selected.tokens.tolist() == [4, 5, 6, 7, 10, 11]
    assert selected.weights.tolist() == pytest.approx([3 / 16] * 4 + [1 / 8] * 2)


def test_overlapping_spans_add_up():
    selected = SelectedTokens.from_spans({(0, 2): 1.0, (1, 3): 1.0}, 3)
    assert selected.tokens.tolist() == [0, 1, 2]
    assert selected.weights.tolist() == pytest.approx([0.25, 0.5, 0.25])


@pytest.mark.parametrize("layers", [(0,), (1, 2)])
@torch.no_grad()
def test_layers_without_scoring_heads_use_the_selection_of_all_heads(layers):
    model, (prefix, document, suffix) = tiny_decoder("llama"), random_prompt(length=152)
    with Unlimiformer(model, selection="blocks-by-layer", layers=layers, block=8, top_k=32, window=64) as u:
        assert generate(u, prefix, document, suffix, max_new_tokens=3, do_sample=False).shape == (1, 3)
        engine = u.engine
        (memory,) = engine.indexer.index_inputs([TokenizedInput(document, prefix, {})])
        question = PromptSuffix(suffix, suffix, "")
        by_layer, shared = (
            TopBlocks(engine.block_scorer, engine.layout, 8, 32, by_layer=flag).select(memory, question, range(3))
            for flag in (True, False)
        )
    for layer in set(range(3)) - set(layers):
        assert by_layer[layer].tokens.tolist() == shared[layer].tokens.tolist()


class _FixedScores:
    """A scorer of blocks that returns what it was made with."""

    def __init__(self, scores):
        self.scores = torch.tensor(scores)

    def score_blocks(self, memory, layout, question):
        """The scores of two heads."""
        return {(0, 0): self.scores / 2, (0, 1): self.scores / 2}


def _selector(u, scores, tokenizer, size=8):
    splitter, tokenize = PassageSplitter(tokenizer, size), u.engine.template.question_ids
    return PassageSelector(_FixedScores(scores), u.engine.layout_of, 8, splitter, tokenize)


def _suffix(tokenizer, question):
    ids = torch.tensor(tokenizer(question, add_special_tokens=False)["input_ids"])
    return PromptSuffix(ids, ids, question)


@pytest.fixture
def document(tokenizer):
    """A wrapped model and a memory of ten passages of eight tokens; the last token ends the text."""
    text = " ".join(f"w{word}" for word in range(10, 89))
    with Unlimiformer(tiny_decoder("llama"), tokenizer, block=8, top_k=32, window=48) as u:
        yield u, u.index(text)


def test_the_passages_with_the_most_attention_are_selected(tokenizer, document):
    u, memory = document
    attention = [0.0] * 10
    attention[3] = 9.0
    (selected,) = _selector(u, attention, tokenizer).select(memory, _suffix(tokenizer, "w3"), [24])
    assert selected.tokens.tolist() == list(range(16, 40)), "the passage and its neighbours"
    assert selected.weights.sum() == pytest.approx(1)
    assert selected.weights[8:16].sum() > 2 * selected.weights[:8].sum()


def test_words_of_the_question_select_a_passage_that_gets_no_attention(tokenizer, document):
    u, memory = document
    (selected,) = _selector(u, [1.0] * 10, tokenizer).select(memory, _suffix(tokenizer, "w68 w69"), [8])
    assert selected.tokens.tolist() == list(range(56, 64))


@pytest.mark.parametrize("max_tokens", [8, 20, 32, 79])
def test_no_more_than_the_largest_number_of_tokens_is_selected(tokenizer, document, max_tokens):
    u, memory = document
    scores = torch.rand(10, generator=torch.Generator().manual_seed(1)).tolist()
    (selected,) = _selector(u, scores, tokenizer).select(memory, _suffix(tokenizer, "w30"), [max_tokens])
    assert max_tokens - 8 < selected.tokens.shape[0] <= max_tokens


def test_a_document_that_is_short_enough_is_selected_whole(tokenizer, document):
    u, memory = document
    (selected,) = _selector(u, [1.0] * 10, tokenizer).select(memory, _suffix(tokenizer, "w30"), [80])
    assert selected.tokens.tolist() == list(range(80))


def test_a_larger_context_has_all_passages_of_a_smaller_one(tokenizer, document):
    u, memory = document
    scores = torch.rand(10, generator=torch.Generator().manual_seed(2)).tolist()
    contexts = _selector(u, scores, tokenizer).select(memory, _suffix(tokenizer, "w30"), [8, 20, 23, 40])
    assert [context.tokens.shape[0] for context in contexts] == [8, 16, 40], "20 and 23 tokens hold the same passages"
    for small, large in itertools.pairwise(contexts):
        assert set(small.tokens.tolist()) < set(large.tokens.tolist())


def test_a_question_that_names_a_section_is_searched_there(tokenizer):
    """Two sections have the same words; the attention prefers the first, the question names the second."""
    words = " ".join(f"w{number % 40}" for number in range(80))
    text = f"Part 1\n\n{words}\n\nPart 2\n\n{words}"
    with Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32) as u:
        memory = u.index(text)
        second = text.index("Part 2")
        selector = _selector(u, list(range(-(-len(memory) // 8), 0, -1)), tokenizer)
        (anywhere,) = selector.select(memory, _suffix(tokenizer, "w7 w9"), [16])
        (named,) = selector.select(memory, _suffix(tokenizer, "w7 in part 2"), [16])
    first, last = (memory.offsets[rows.tokens + memory.prefix_tokens, 0].float() for rows in (anywhere, named))
    assert float(first.max()) < second < float(last.median()), "a passage may begin before its section"


@pytest.mark.parametrize(("question", "first", "last"), [("w7 at the end of the story", 24, 40), ("w7", 0, 1)])
def test_a_question_about_the_end_is_searched_there(tokenizer, question, first, last):
    """Forty passages of eight tokens, of which the first gets all of the attention."""
    text = " ".join(f"w{number % 80}" for number in range(319))
    with Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32) as u:
        memory = u.index(text)
        selector = _selector(u, [9.0] + [0.0] * 39, tokenizer)
        (selected,) = selector.select(memory, _suffix(tokenizer, question), [8])
    assert first <= int(selected.tokens[0]) // 8 < last


def test_notices_of_transcribers_are_not_searched(tokenizer):
    text = "Produced by w1 w2\n\n" + " ".join(f"w{number % 80}" for number in range(119))
    with Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32) as u:
        memory = u.index(text)
        selector = _selector(u, [9.0] + [0.0] * (-(-memory.text_tokens // 8) - 1), tokenizer, 4)
        (selected,) = selector.select(memory, _suffix(tokenizer, "w50"), [4])
    start = int(memory.offsets[selected.tokens[-1] + memory.prefix_tokens, 1])
    assert start > text.index("\n\n")


def test_a_title_that_introduces_a_question_is_not_asked(tokenizer, monkeypatch):
    words = " ".join(f"w{number % 40}" for number in range(80))
    with Unlimiformer(tiny_decoder("llama"), tokenizer, window=64, block=8, top_k=32) as u:
        memory = u.index(f"Part 1\n\n{words}\n\nPart 2\n\n{words}")
        suffix, asked = u.engine.template.suffix, []
        monkeypatch.setattr(u.engine.template, "suffix", lambda question: asked.append(question) or suffix(question))
        for question in ("In “Part 2”: w7", "w7 in part 2"):
            u.generate(memory, prompt=question, max_new_tokens=1, do_sample=False)
    assert asked == ["In “Part 2”: w7", "w7", "w7 in part 2"]


def test_the_mean_over_a_passage_weighs_blocks_by_their_tokens(tokenizer, document):
    _, memory = document
    index = PassageIndex(memory, PassageSplitter(None, 20))
    assert index.spans == [(0, 20), (20, 40), (40, 80)]
    scores = torch.arange(10).float()
    by_token = scores.repeat_interleave(8)
    expected = [float(by_token[start:stop].mean()) for start, stop in index.spans]
    assert index.mean_by_passage(by_token).tolist() == pytest.approx(expected)


def test_the_output_says_what_was_selected(tokenizer, document):
    u, memory = document
    output = u.generate(memory, prompt="w30", max_new_tokens=2, do_sample=False)
    rows = output.selected
    assert 0 < rows.shape[0] <= 32 and int(rows.min()) >= memory.prefix_tokens
    spans = memory.character_spans(rows)
    words = " ".join(memory.text[start:end] for start, end in spans).split()
    assert words == tokenizer.decode(memory.token_ids[rows], skip_special_tokens=True).split()
