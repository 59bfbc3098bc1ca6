"""The answer in what a model says at the end. Pure."""

from __future__ import annotations

import re

# Each takes time in proportion to the text, whatever that is: a model may repeat itself up to its token limit.
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_LABEL = re.compile(r"^[ \t>*_#`]*(?:final[ \t]+)?answer[*_`]*[ \t]*:[*_`]*[ \t]*", re.IGNORECASE | re.MULTILINE)
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_FENCE = re.compile(r"\A```[\w-]*\n(.*?)\n?```\Z", re.DOTALL)


def marked_answer(text: str) -> str | None:
    """What the text marks as its answer: ``<answer>...</answer>``, ``Answer: ...`` or ``\\boxed{...}``, else None.

    The last mark counts: a model may change its mind.
    """
    if tags := _TAG.findall(text):
        return clean(tags[-1])
    if labels := list(_LABEL.finditer(text)):
        return clean(text[labels[-1].end() :])
    if boxes := _BOX.findall(text):
        return clean(boxes[-1])
    return None


def answer_in(text: str) -> str:
    """The marked answer, or else the whole text."""
    marked = marked_answer(text)
    return clean(text) if marked is None else marked


def clean(text: str) -> str:
    """An answer without the fence, the bold marks or the quotes that may stand around all of it."""
    text = text.strip()
    if (fenced := _FENCE.match(text)) is not None:
        text = fenced[1].strip()
    for mark in ("**", "`", '"'):
        inner = text[len(mark) : -len(mark)]
        if text.startswith(mark) and text.endswith(mark) and len(text) > 2 * len(mark) and mark not in inner:
            text = inner.strip()
    return text
