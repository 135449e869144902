"""Questions that refer to an earlier one: "And who killed him?" with a name or a phrase for "him".

Rules propose what a word may stand for; who calls them chooses, such as by how likely a model finds each question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

Choose = Callable[[list[str]], int]
"""Chooses one of several versions of a question, by its number; of equally good ones, the first is the likeliest."""

_DETERMINER = r"(?:the|a|an|his|her|its|their|this|that|these|those|my|our|your|some|all|both|each|every|one|two|three)"
_PRONOUNS = (  # those of a group stand for the same
    ("he", "him", "his"),
    ("she", "her", "hers"),
    ("they", "them", "their", "theirs"),
    ("it", "its"),
    ("there",),
)
_POSSESSIVE = ("his", "her", "its", "their")
_NO_NOUNS = re.compile(
    r"who|whom|whose|what|which|when|where|why|how|did|do|does|is|are|was|were|be|been|had|has|have|can|could|would|should"
    r"|will|may|might|must|and|or|but|if|than|then|to|in|on|at|for|with|by|from|into|out|up|off|over|under|about|after"
    r"|before|while|because|not|no|so|as|he|him|she|her|it|they|them|there|i|you|we",
    re.IGNORECASE,
)
_PLURAL_DETERMINERS = ("two", "three", "both", "all", "these", "those", "some")
_MALE = re.compile(
    r"(?:king|man|boy|lad|son|brother|father|husband|prince|emperor|lord|uncle|knight|duke|earl|gentleman|grandfather"
    r"|wizard|monk|priest|mr|sir|step-?father|step-?brother|nephew|bridegroom|merchant|giant|king’s|miller|fisherman)"
)
_FEMALE = re.compile(
    r"(?:queen|woman|girl|maid|maiden|daughter|sister|mother|wife|princess|empress|lady|aunt|widow|grandmother|witch"
    r"|nun|mrs|miss|step-?mother|step-?sister|niece|bride|waiting-maid)"
)
_CONTINUATION = re.compile(r"^\W*(?:and|but|so|then|ok|okay|well)\b[\s,]*", re.IGNORECASE)
_BEGINS_QUESTION = re.compile(
    r"^\W*(?:who|whom|whose|what|which|when|where|why|how|did|do|does|is|are|was|were|can|could|has|have|had|will|would)\b",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"^\W*(?:(?:what|how) about\s+)", re.IGNORECASE)
_EXISTENTIAL = re.compile(r"\s+(?:is|are|was|were|be|been|a|an|no|any)\b|\s*'s\b", re.IGNORECASE)
_NOT_OWNED = re.compile(
    r"\s*(?:[^\w\s]|$)|\s+(?:to|in|on|at|for|with|by|from|into|out|up|off|over|about|after|before|when|while|because|and|or"
    r"|do|go|be|again|then|there|so|that|not)\b",
    re.IGNORECASE,
)
_LONGEST_PHRASE, _MOST_PHRASES = 5, 14
_LONGEST_ANSWER = 5  # words of an answer that may itself be what is meant
_SHORT = 4  # words of a question that names only what is new: "And the second one?"


def refers_back(question: str) -> bool:
    """Whether a question may need what was asked before it."""
    return _is_elliptical(question) or any(_find(question, group) for group in _PRONOUNS)


def resolve_references(question: str, earlier_question: str, earlier_answer: str, choose: Choose) -> str:
    """A question that can be understood alone; itself, but for "And …", where nothing fits."""
    asked = _capitalized(_CONTINUATION.sub("", question)) or question
    if _is_elliptical(question):
        topic = _ABOUT.sub("", asked).rstrip("?. ")
        topic = topic[:1].lower() + topic[1:] if re.match(rf"{_DETERMINER}\b", topic, re.IGNORECASE) else topic
        options = [
            _capitalized(earlier_question.replace(phrase, topic, 1))
            for phrase in noun_phrases(earlier_question)
            if topic and phrase in earlier_question
        ]
        return options[choose(options)] if options else question
    phrases = _referents(earlier_question, earlier_answer)
    for group in _PRONOUNS:
        if _find(asked, group):
            fitting = [phrase for phrase in phrases if phrase not in asked and _agrees(phrase, group)]
            options = [_replaced(asked, group, phrase) for phrase in fitting]
            asked = options[choose(options)] if options else asked
    return asked


def noun_phrases(text: str) -> list[str]:
    """Words that may name a person or a thing: behind "the" and the like, and names; also their beginnings."""
    words = list(re.finditer(r"[\w’'-]+|[^\w\s]", text))
    phrases: list[str] = []
    inside = -1  # the last word of a phrase that begins with a determiner
    for first, word in enumerate(words):
        if re.fullmatch(_DETERMINER, word.group(), re.IGNORECASE):
            ends = list(_determined_ends(words, first))
            inside = max([inside, *ends])
            ends += _joined_ends(words, ends)
        elif first > inside and word.group()[0].isupper() and not _NO_NOUNS.fullmatch(word.group()):
            ends = [inside := _name_end(words, first)]
        else:
            continue
        phrases += [text[word.start() : words[end].end()] for end in ends]
    return list(dict.fromkeys(phrases))


def _determined_ends(words: Sequence[re.Match[str]], first: int) -> Iterator[int]:
    """Where a phrase may end that begins with a determiner; "of the …" belongs to it."""
    for end in range(first + 1, min(first + 1 + _LONGEST_PHRASE, len(words))):
        word = words[end].group()
        if word.lower() == "of" or (words[end - 1].group().lower() == "of" and re.fullmatch(_DETERMINER, word.lower())):
            continue
        if not word[0].isalnum() or _NO_NOUNS.fullmatch(word) or re.fullmatch(_DETERMINER, word.lower()):
            return
        is_name = word[0].isupper() and end + 1 < len(words) and words[end + 1].group()[0].isupper()
        if not is_name:  # a name is not cut
            yield end


def _joined_ends(words: Sequence[re.Match[str]], ends: Sequence[int]) -> list[int]:
    """Where a phrase ends together with one behind "and": "the man and his wife"."""
    joined = []
    for end in ends:
        if end + 2 < len(words) and words[end + 1].group().lower() == "and":
            joined += list(_determined_ends(words, end + 2))
    return joined


def _name_end(words: Sequence[re.Match[str]], first: int) -> int:
    end = first
    while end + 1 < len(words) and words[end + 1].group()[0].isupper():
        end += 1
    return end


def _referents(question: str, answer: str) -> list[str]:
    """What a pronoun may stand for: a short answer, what is new in the answer, what the earlier question names."""
    answer = answer.strip().rstrip(".")
    phrases = []
    first_word = answer.split()[0] if answer else ""
    is_phrase = re.fullmatch(_DETERMINER, first_word, re.IGNORECASE) or (
        first_word[:1].isupper() and not _NO_NOUNS.fullmatch(first_word)
    )
    if is_phrase and len(answer.split()) <= _LONGEST_ANSWER:
        phrases.append(answer)
    in_question = noun_phrases(question)
    phrases += [*(phrase for phrase in noun_phrases(answer) if phrase.lower() not in question.lower()), *in_question]
    definite = [re.sub(r"^(?:a|an)\s", "the ", _uncapitalized(phrase), flags=re.IGNORECASE) for phrase in phrases]
    return list(dict.fromkeys(definite))[:_MOST_PHRASES]


def _agrees(phrase: str, group: Sequence[str]) -> bool:
    """Whether a pronoun may stand for a phrase, as far as its words tell."""
    words = re.split(r"\s+of\s+", phrase)[0].split()
    head = words[-1]
    has_plural_form = re.search(r"[^s’']s$|men$|children$|people$", head) is not None and not head[0].isupper()
    is_plural = " and " in phrase or words[0].lower() in _PLURAL_DETERMINERS or has_plural_form
    is_male, is_female = (any(kind.fullmatch(word.lower()) for word in words) for kind in (_MALE, _FEMALE))
    if group[0] == "they":
        return is_plural
    if group[0] in ("he", "she"):
        return not (is_female if group[0] == "he" else is_male) and not (is_plural and words[0] not in ("his", "her"))
    return not (is_male or is_female)


def _is_elliptical(question: str) -> bool:
    """Whether a question names only what differs from the one before: "And the youngest?" """
    asked = _CONTINUATION.sub("", question)
    if _ABOUT.match(asked):
        return True
    return 0 < len(asked.split()) <= _SHORT and asked.rstrip().endswith("?") and not _BEGINS_QUESTION.match(asked)


def _find(text: str, group: Sequence[str]) -> list[re.Match[str]]:
    """Where a text has a pronoun of a group; "there" in "there was" stands for nothing."""
    found = list(re.finditer(rf"\b(?:{'|'.join(group)})\b", text, re.IGNORECASE))
    return [match for match in found if group != ("there",) or not _EXISTENTIAL.match(text, match.end())]


def _replaced(text: str, group: Sequence[str], phrase: str) -> str:
    """A text with a phrase for the first pronoun of a group."""
    match = _find(text, group)[0]
    pronoun = match.group().lower()
    is_owner = pronoun in _POSSESSIVE and not (pronoun == "her" and _NOT_OWNED.match(text, match.end()))
    if pronoun == "there":
        phrase = f"at {phrase}"
    elif is_owner:
        phrase += "’" if phrase.endswith("s") else "’s"
    return _capitalized(text[: match.start()] + phrase + text[match.end() :])


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _uncapitalized(phrase: str) -> str:
    return phrase[:1].lower() + phrase[1:] if re.match(rf"{_DETERMINER}\b", phrase, re.IGNORECASE) else phrase
