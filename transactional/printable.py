"""Texts of others without control characters: an escape sequence in a name could command the reader's terminal."""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["printable"]

_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories: control characters, invisible ones (they turn the direction of a text), surrogates, ends of lines."""


def printable(text: str, kept: str = "") -> str:
    r"""Return the text with control characters escaped, as ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in kept or unicodedata.category(each) not in _CONTROLS else _escape(each) for each in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
