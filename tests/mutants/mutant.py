"""One planted bug: read from a file of patches, put into a tree, taken out again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

__all__ = ["Mutant", "MutantError", "planted", "read_patches"]

EQUIVALENT, INTEGRATION = "equivalent:", "integration:"


class MutantError(Exception):
    """A patch that cannot be read, or does not fit the product any more."""


@dataclass(frozen=True)
class Mutant:
    """A bug."""

    room: str  # Part of the product.
    breaks: str  # What goes wrong with it.
    file: str  # Relative to the root.
    # Tests that should find it, or their files, the likeliest first; or ``equivalent: why``, or ``integration: test``.
    found_by: str
    # Whole lines, each with its line end.
    old: str
    new: str

    @property
    def tests(self) -> list[str]:
        """Tests to try first; none if the quick suite is not expected to find it."""
        return [] if self.is_known else self.found_by.split()

    @property
    def is_equivalent(self) -> bool:
        """Whether no test can find it."""
        return self.found_by.startswith(EQUIVALENT)

    @property
    def is_known(self) -> bool:
        """Whether it is known that the quick suite does not find it."""
        return self.found_by.startswith((EQUIVALENT, INTEGRATION))

    def planted_text(self, text: str) -> str:
        """Return a file's text with the bug in it.

        Raises
        ------
        MutantError
            The old lines are not in it, or more than once.
        """
        lines = f"\n{text}"
        times = lines.count(f"\n{self.old}")
        if times != 1:
            raise MutantError(
                f"stale patch {self.room}: {self.breaks!r}: {self.file} has its old lines {times} times, not once:\n{self.old}"
            )
        return lines.replace(f"\n{self.old}", f"\n{self.new}")[1:]


@contextmanager
def planted(mutant: Mutant, root: Path) -> Iterator[None]:
    """Plant a bug into a tree, and take it out at the end.

    Python tells bytecode that is too old by a whole second and the size, which both can be equal: it is deleted.
    """
    path = root / mutant.file
    if not path.is_file():
        raise MutantError(f"stale patch {mutant.room}: {mutant.breaks!r}: there is no {mutant.file}")
    text = path.read_text(encoding="utf-8")
    path.write_text(mutant.planted_text(text), encoding="utf-8")
    _forget(path)
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")
        _forget(path)


def _forget(path: Path) -> None:
    try:
        os.unlink(cache_from_source(str(path)))
    except FileNotFoundError:
        return


def read_patches(path: Path) -> list[Mutant]:
    """Read a room's bugs.

    Raises
    ------
    MutantError
        A patch lacks a part.
    """
    return [_parse(path.stem, part) for part in f"\n{path.read_text(encoding='utf-8')}".split("\n## ")[1:]]


def _parse(room: str, part: str) -> Mutant:
    breaks, *lines = part.splitlines()
    fields = dict(line.split(": ", 1) for line in lines if line[:1] not in ("", " ", "-", "+"))
    old = [line[1:] for line in lines if line[:1] in ("-", " ")]
    new = [line[1:] for line in lines if line[:1] in ("+", " ")]
    if fields.keys() != {"file", "found by"} or not old or old == new:
        raise MutantError(f"patch {room}: {breaks!r} needs `file`, `found by`, and old and new lines that differ")
    return Mutant(room, breaks, fields["file"], fields["found by"], _joined(old), _joined(new))


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
