"""Every choice of a run, drawn from one seed, or given one by one; and a run made as small as it can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["Choices", "shrink"]

Thing = TypeVar("Thing")


class Choices:
    """Numbers that decide what happens. 0 is always what disturbs least.

    Parameters
    ----------
    source : int or Sequence[int]
        A seed; or the choices of an earlier run, after whose end all are 0.

    Attributes
    ----------
    taken : list[int]
        All choices so far.
    """

    def __init__(self, source: int | Sequence[int]) -> None:
        self.taken: list[int] = []
        self._random = random.Random(source) if isinstance(source, int) else None
        self._given = iter(()) if isinstance(source, int) else iter(source)

    def below(self, bound: int) -> int:
        """Return a number from 0 to `bound`, exclusive."""
        chosen = int(self._random.random() * bound) if self._random else min(next(self._given, 0), bound - 1)
        self.taken.append(chosen)
        return chosen

    def one_of(self, things: Sequence[Thing]) -> Thing:
        """Return one of several; the first is the one that disturbs least."""
        return things[self.below(len(things))]


def shrink(choices: Sequence[int], fails: Callable[[Sequence[int]], bool], tries: int = 2000) -> list[int]:
    """Return fewer and smaller choices that still fail, found by leaving out and zeroing ever shorter pieces.

    Parameters
    ----------
    choices : Sequence[int]
    fails : Callable[[Sequence[int]], bool]
        Whether a run of these choices shows what is looked for.
    tries : int
        Runs at most.
    """
    best = list(choices)
    length = len(best)
    while length and tries > 0:
        for change in (_without, _zeroed):
            start = 0
            while start < len(best) and tries > 0:
                smaller = change(best, start, start + length)
                if smaller != best:
                    tries -= 1
                    if fails(smaller):
                        best = smaller
                        continue  # at the same place: other choices are there now, or nothing changes any more
                start += length
        length //= 2
    while best and best[-1] == 0:
        best.pop()
    return best


def _without(choices: Sequence[int], start: int, end: int) -> list[int]:
    return [*choices[:start], *choices[end:]]


def _zeroed(choices: Sequence[int], start: int, end: int) -> list[int]:
    return [*choices[:start], *[0] * (min(end, len(choices)) - start), *choices[end:]]
