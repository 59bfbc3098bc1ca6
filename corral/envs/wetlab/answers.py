"""Reading an answer: ions as people write them. Pure.

``Ag+``, ``Pb+2``, ``Pb2+``, ``Pb^2+``, ``Pb²⁺``, ``Pb++``, ``lead``, ``lead(II)``, ``Pb`` and ``Pb(OH)2`` are all
understood; separators, numbering and plain words are passed over. A token that is written like an ion and is none of
the possible ones is kept as it is, and so counts as a wrong ion.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_NAMES = {
    "Ag+": "silver", "Pb+2": "lead", "Hg2+2": "mercurous", "Hg+2": "mercury mercuric", "Cu+2": "copper cupric",
    "Cd+2": "cadmium", "Fe+3": "iron ferric", "Al+3": "aluminium aluminum", "Cr+3": "chromium chromic",
    "Ni+2": "nickel", "Co+2": "cobalt", "Mn+2": "manganese", "Zn+2": "zinc", "Ba+2": "barium", "Sr+2": "strontium",
    "Ca+2": "calcium", "Mg+2": "magnesium", "NH4+": "ammonium", "K+": "potassium", "Na+": "sodium", "Cl-": "chloride",
    "Br-": "bromide", "I-": "iodide", "SO4-2": "sulfate sulphate", "CO3-2": "carbonate", "PO4-3": "phosphate",
    "CrO4-2": "chromate", "SCN-": "thiocyanate",
}  # fmt: skip
_ROMAN = {1: "i", 2: "ii", 3: "iii"}
_SEPARATORS = re.compile(r"[\s,;:<>=/|&]+")
_ION_LIKE = re.compile(r"(?:[A-Z][a-z]?\d?)+(?:[+-]+\d?|\d[+-])$")
_BACKGROUND = {"H+", "H3O+", "OH-", "NO3-"}
"""Always there; naming them is no mistake."""


def parse_ions(answer: object) -> list[str]:
    """The ions that an answer names, in order, each once."""
    text = unicodedata.normalize("NFKC", answer if isinstance(answer, str) else str(answer)).replace("\u2212", "-")
    text = re.sub(r"->|\u2192", " ", text)
    text = re.sub(r"\s+\((?=[IV\d])", "(", text)
    found: list[str] = []
    for token in _SEPARATORS.split(text):
        ion = _ion(token)
        if ion is not None and ion not in found:
            found.append(ion)
    return found


def _ion(token: str) -> str | None:
    bare = re.sub(r"(?i)\((aq|s)\)", "", token).strip("\"'`*_[].!?")
    hydroxide = re.fullmatch(r"([A-Z][a-z])\(OH\)_?\{?\d?\}?", bare)
    key = re.sub(r"[\^(){}_$]", "", hydroxide[1] if hydroxide else bare)
    if key in _SYMBOLS:
        return _SYMBOLS[key]
    if key.lower() in _WORDS:
        return _WORDS[key.lower()]
    return key if _ION_LIKE.match(key) and key not in _BACKGROUND else None


def _spellings(ion: str) -> Iterable[str]:
    match = re.fullmatch(r"(.*?)([+-])(\d?)", ion)
    assert match is not None
    symbol, sign, digit = match.groups()
    n = int(digit or 1)
    yield from (
        symbol + sign + digit,
        symbol + digit + sign,
        symbol + sign * n,
        f"{symbol}{sign}{n}",
        f"{symbol}{n}{sign}",
    )
    if ion != "I-":  # the pronoun
        yield symbol
    if ion != "Hg2+2":
        yield symbol + _ROMAN[n].upper()


_SYMBOLS: dict[str, str] = {}
for _known in reversed(list(_NAMES)):  # so that Hg2+ is mercury(II), as chemists write it
    for _spelling in _spellings(_known):
        _SYMBOLS[_spelling] = _known
_SYMBOLS |= {"Hg2+": "Hg+2", "Hg22+": "Hg2+2", "Hg2": "Hg2+2", "HgI": "Hg2+2", "HgII": "Hg+2"}

_WORDS: dict[str, str] = {}
for _known, _words in _NAMES.items():
    for _word in _words.split():
        _WORDS[_word] = _known
        _WORDS.update(
            {_word + suffix: _known for suffix in ("s", _ROMAN[int(_known[-1]) if _known[-1].isdigit() else 1])}
        )
_WORDS |= {"mercuryi": "Hg2+2", "mercuryii": "Hg+2"}
