"""Escapes control characters in strings from other systems. Otherwise they could control the user's terminal."""

from __future__ import annotations

import unicodedata
from typing import Final

_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""The Unicode categories that are escaped: control characters, format characters (which can reverse text), surrogates,
and line separators."""


def printable(text: str, kept: str = "") -> str:
    r"""Return the text with control characters escaped, for example as ``\x1b``. Characters in `kept` are not escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in kept or unicodedata.category(each) not in _CONTROLS else _escape(each) for each in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
