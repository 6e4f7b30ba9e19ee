"""Words that our texts do without, each with what to write instead: ``python -m tests.words``, a part of ``make lint``.

Docstrings, comments and string literals of the product are read, and the pages of the documentation. Names are not: neither
those of the code, nor what a page quotes as code. What users read most (public docstrings, the catalogues of errors, options)
is also read for `SHAPES` of sentences.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import barrier_kafka
import barrier_kafka.testing
from tests.results import ROOT

__all__ = ["EXCEPTIONS", "ROOMS", "SHAPES", "WORDS", "found", "in_file", "in_text", "reference"]

ROOMS = ("barrier_kafka", "connector", "transactional")

INSTEAD = {
    r"told|tells?|telling": "report, pass, print, return",
    r"anew": "again, re-create",
    r"nobody|somebody": "no one, nothing, another process",
    r"heed(s|ed|ing)?": "obey, respond to",
    r"mend(s|ed|ing)?": "fix, repair",
    r"so many|so long": "at most N, how many, how long",
    r"ways? out": "remedy",
    r"at work": "running, in progress",
    r"where (there|none|no)": "if, when",
    r"lanes?": "transactional id",
}
"""Regular expressions of whole words, in any case, and what to write."""

SHAPES = {
    r"(?:\A|[.:;]\s+|\n\s*)(?:Of|What|Whether)\s": "begin with a verb, or with the noun",
    r"\bbehind\b": "after",
    r"\bgo(?:es)? on\b": "continue",
    r", too(?=\W|\Z)": "also, as well",
}
"""Regular expressions in public docstrings, the catalogues and options, and what to write."""

WHITE = r"\s+"  # a line may end between two words

WORDS = re.compile(rf"\b({'|'.join(INSTEAD).replace(' ', WHITE)})\b", re.IGNORECASE)

EXCEPTIONS = frozenset({("connector/kafka/client/config.py", "where no")})  # an offset: where no task can read
"""File and word, for a word that is meant."""

QUOTED = re.compile(r"^```.*?^```$|`[^`]+`", re.DOTALL | re.MULTILINE)
"""Code in a page."""


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file, with their lines: a page's prose; of code, comments and literals of several words."""
    if path.suffix == ".md":
        yield 1, QUOTED.sub(lambda code: "`" + "\n" * code.group().count("\n"), path.read_text(encoding="utf-8"))
        return
    with tokenize.open(path) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
    yield from ((token.start[0], token.string) for token in tokens)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def in_file(path: Path, name: str) -> list[str]:
    """Return a line for each word of the table in a file: where it is, and what to write instead."""
    hits = []
    for line, text in _texts(path):
        for hit in WORDS.finditer(text):
            word = " ".join(hit.group().lower().split())
            if (name, word) not in EXCEPTIONS:
                instead = next(say for bad, say in INSTEAD.items() if re.fullmatch(bad, word))
                hits.append((line + text.count("\n", 0, hit.start()), f"{word}: {instead}"))
    return [f"{name}:{line}: {what}" for line, what in sorted(hits)]


def reference() -> Iterator[tuple[str, str]]:
    """Yield what users read most, with its name: public docstrings, messages and remedies, options."""
    for module in (barrier_kafka, barrier_kafka.testing):
        for name in module.__all__:
            value = getattr(module, name)
            yield name, inspect.getdoc(value) or ""
            for own, member in vars(value).items() if inspect.isclass(value) else ():
                method = getattr(member, "__func__", getattr(member, "fget", member))
                if not own.startswith("_") and inspect.isfunction(method):
                    yield f"{name}.{own}", inspect.getdoc(method) or ""
    for file in (ROOT / "transactional" / "errors", ROOT / "connector"):
        for name, row in json.loads((file / "conditions.json").read_text(encoding="utf-8")).items():
            yield from ((name, " ".join(row[key])) for key in ("message", "remedy") if key in row)
    for path in sorted((ROOT / "connector").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Option" and len(node.args) > 3:
                yield ast.unparse(node.args[0]).strip("'"), str(getattr(node.args[3], "value", ""))


def in_text(name: str, text: str) -> list[str]:
    """Return a line for each shape of the table in a text of the reference."""
    return [f"{name}: {hit.group().strip()}: {say}" for bad, say in SHAPES.items() for hit in re.finditer(bad, text)]


def found() -> list[str]:
    """Return the lines of all files of the product, and of its pages."""
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    paths += sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    hits = [hit for path in paths for hit in in_file(path, path.relative_to(ROOT).as_posix())]
    return hits + [hit for name, text in reference() for hit in in_text(name, text)]


if __name__ == "__main__":
    hits = found()
    print("\n".join(hits), end="\n" if hits else "")
    sys.exit(bool(hits))
