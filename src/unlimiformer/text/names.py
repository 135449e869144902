"""Names and numbers of a sentence, by their spelling."""

from __future__ import annotations

import re

from .sentences import TITLES, split_sentences

_TITLES = re.compile(rf"\b(?:{TITLES})\.?\s+(?=\w)")
_WORD = re.compile(r"[^\W\d_][\w’'-]*")
_NUMBER = re.compile(r"\d[\d,.]*\d|\d")
_COMMON_FIRST_WORD = re.compile(
    r"(?:a|about|above|after|afterwards|again|all|also|although|an|and|another|any|anyone|around|as|at|away|back|because|before"
    r"|behind|below|beside|between|both|but|by|despite|down|due|each|either|even|every|everyone|for|from|he|her|here"
    r"|him|himself|his|how|however|i|if|in|inside|instead|into|it|its|just|last|later|like|many|maybe|meanwhile|more"
    r"|most|much|my|neither|never|next|no|nobody|none|nor|not|now|of|off|on|once|one|only|or|other|others|our|out"
    r"|outside|over|overall|perhaps|she|since|so|some|someone|soon|still|such|than|that|the|their|them|then|there"
    r"|therefore|these|they|this|those|three|through|throughout|thus|to|together|two|under|until|up|upon|we|what|when"
    r"|where|whether|which|while|who|whose|why|with|within|without|yes|yet|you|your|\w+(?:ing|ed|ly))",
    re.IGNORECASE,
)


def missing_names(sentence: str, text: str) -> list[str]:
    """Names and numbers of a sentence that a text does not have.

    A name begins with a capital letter. The first word of a sentence is one too, unless it is common there.
    """
    known = {_normal(word) for word in _WORD.findall(text)}
    known |= {part for word in known for part in re.split(r"[’'-]", word)}
    numbers = {number.replace(",", "") for number in _NUMBER.findall(text)}
    missing = [name for name in find_names(sentence) if _normal(name) not in known]
    return [*missing, *(number for number in _NUMBER.findall(sentence) if number.replace(",", "") not in numbers)]


def find_names(text: str) -> list[str]:
    """The words of a text that are names by their spelling."""
    text = _TITLES.sub("", text)
    names = []
    for start, end in split_sentences(text):
        for number, match in enumerate(_WORD.finditer(text, start, end)):
            word = match.group()
            is_common = number == 0 and _COMMON_FIRST_WORD.fullmatch(word)
            if word[0].isupper() and len(word) > 1 and not is_common:
                names.append(word)
    return names


def _normal(word: str) -> str:
    return word.casefold().removesuffix("'s").removesuffix("’s")
