"""How answers end: length, loops, whole sentences."""

from __future__ import annotations

import pytest
import torch
from tiny_causal_models import tiny_decoder
from tiny_models import WINDOW, make
from transformers import LogitsProcessor

from unlimiformer import Unlimiformer
from unlimiformer.engines.answer_end import AnswerEnd, RepetitionLimit, loop_start
from unlimiformer.qa import DocumentQA, QuestionFormat


class _OneWord(LogitsProcessor):
    """A model that always wants to write the same words in turn, and otherwise anything but the end."""

    def __init__(self, tokens: list[int], end: int) -> None:
        self.tokens, self.end, self.step = tokens, end, 0

    def __call__(self, input_ids, scores):
        """Put the next wanted word far above all others."""
        scores = scores.clone()
        scores[:, self.tokens[self.step % len(self.tokens)]] += 1e4
        scores[:, self.end] = -1e6
        self.step += 1
        return scores


def _ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _forbidden(tokenizer, answer, prompt="w1 w2"):
    """The words that may not follow an answer."""
    rule = RepetitionLimit(tokenizer)
    given, tokens = _ids(tokenizer, prompt), _ids(tokenizer, answer)
    rule(torch.tensor([given]), torch.zeros(1, len(tokenizer)))
    scores = rule(torch.tensor([given + tokens]), torch.zeros(1, len(tokenizer)))
    return tokenizer.convert_ids_to_tokens((scores[0] == float("-inf")).nonzero()[:, 0].tolist())


def test_the_same_four_words_are_not_written_a_third_time(tokenizer):
    twice = "w1 w2 w3 w4 w5 w1 w2 w3 w4 w6 w1 w2 w3"
    assert [token.strip("▁Ġ") for token in _forbidden(tokenizer, twice)] == ["w4"]
    assert _forbidden(tokenizer, "w1 w2 w3 w4 w5 w1 w2 w3") == []  # a second time is allowed
    assert _forbidden(tokenizer, twice + " w7") == []


def test_what_was_given_does_not_count(tokenizer):
    phrase = "w1 w2 w3 w4 "
    assert _forbidden(tokenizer, "w1 w2 w3", prompt=phrase * 5) == []


@pytest.mark.parametrize("kind", ["decoder-only", "encoder-decoder"])
@pytest.mark.parametrize("beams", [1, 2])
def test_a_model_that_wants_to_loop_does_not(tokenizer, book, kind, beams):
    model = make("t5") if kind == "encoder-decoder" else tiny_decoder("llama")
    end = model.generation_config.eos_token_id or 0
    with Unlimiformer(model, tokenizer, window=64 if kind == "decoder-only" else WINDOW) as wrapped:
        qa = DocumentQA(wrapped, book, QuestionFormat(place="decoder"))
        words = _ids(tokenizer, "w1 w2 w3")
        settings = {"max_new_tokens": 40, "do_sample": False, "num_beams": beams}
        looping = wrapped.generate(
            qa.ask("w9", **settings).output.memory,
            prompt=qa.question_format.prompt("w9", wrapped.engine),
            logits_processor=[_OneWord(words, end)],
            **settings,
        )
        answer = qa.ask("w9", logits_processor=[_OneWord(words, end)], **settings)
        truncated = qa.ask_truncated("w9", logits_processor=[_OneWord(words, end)], **settings)
    assert loop_start(looping.answer) is not None
    assert loop_start(answer.text) is None and answer.text
    assert loop_start(truncated) is None and truncated


def test_loops_are_found_in_words_and_not_in_numbers():
    assert loop_start("He ran to the tree. He ran to the sea. He ran to the hill.") == len(
        "He ran to the tree. He ran to the sea. "
    )
    assert loop_start("He ran to the tree. He ran to the sea.") is None
    assert loop_start("1 1 1 1 1 1 1 1 1") is None


def test_an_answer_is_cut_before_its_loop(tokenizer):
    end = AnswerEnd(["w1"], {}, tokenizer)
    assert (
        end.text("A king came. He ran to it. He ran to it. He ran to it.") == "A king came. He ran to it. He ran to it."
    )


def test_an_answer_of_the_longest_length_ends_with_a_sentence(tokenizer):
    words = "w1 w2 w3 w4. w5 w6"
    tokens = len(_ids(tokenizer, words))
    assert AnswerEnd(["w1"], {"max_new_tokens": tokens}, tokenizer).text(words) == "w1 w2 w3 w4."
    assert AnswerEnd(["w1"], {"max_new_tokens": tokens + 2}, tokenizer).text(words) == words


def test_the_length_follows_the_question_unless_it_is_given(tokenizer):
    short = AnswerEnd(["Who found the ring?"], {}, tokenizer).generation["max_new_tokens"]
    long = AnswerEnd(["Describe how the ring was found."], {}, tokenizer).generation["max_new_tokens"]
    assert short < long == AnswerEnd([None], {}, tokenizer).generation["max_new_tokens"]
    assert AnswerEnd([None, "Who?"], {}, tokenizer).generation["max_new_tokens"] == long
    assert AnswerEnd([None], {"max_new_tokens": 7}, tokenizer).generation["max_new_tokens"] == 7
    assert "max_new_tokens" not in AnswerEnd([None], {"max_length": 7}, tokenizer).generation


def test_a_new_call_of_generate_has_a_new_answer(tokenizer):
    limit = RepetitionLimit(tokenizer)
    phrase = _ids(tokenizer, "w1 w2 w3 w4")
    for prompt in ([5, 6], phrase * 5, [7]):
        for length in range(3):
            ids = torch.tensor([[*prompt, *phrase[:length]]])
            scores = limit(ids, torch.zeros(1, 97))
            assert torch.isfinite(scores).all()
