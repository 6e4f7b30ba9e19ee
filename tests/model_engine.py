"""Explicit-state search: every state that can be reached, breadth first, until one breaks an invariant."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Interned", "Result", "Violation", "search"]

T = TypeVar("T", bound=Hashable)
State = tuple[int, ...]


class Violation(Exception):
    """A move broke an invariant."""


class Interned(Generic[T]):
    """Numbers for values: a state is then a few integers, and hashing it is cheap."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self.values: list[T] = []

    def __call__(self, value: T) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


@dataclass
class Result:
    """What a search found."""

    states: int
    seconds: float
    violation: str  # Empty where there is none.
    trace: list[str]  # Labels of the shortest way to it.
    complete: bool  # False where the bound on states ended the search.
    seen: set[State]

    def __str__(self) -> str:
        end = f"VIOLATION: {self.violation}" if self.violation else "no violation" if self.complete else "NOT COMPLETE"
        lines = [f"{self.states} states, {self.seconds:.1f} s: {end}"]
        return "\n".join([*lines, *(f"  {i:3} {label}" for i, label in enumerate(self.trace, 1))])


def search(
    initial: State,
    moves: Callable[[State], Iterable[tuple[str, State, str]]],
    most: int = 10_000_000,
    trace: bool = True,
) -> Result:
    """Search breadth first.

    Parameters
    ----------
    initial : State
    moves : Callable
        For a state: label, next state, and the violation that the move is (empty where it is none). Deterministic.
    most : int
        Bound on the states.
    trace : bool
        Search a second time for the way to a violation; the first time keeps no ways, for memory.
    """
    begin = time.perf_counter()
    seen = {initial}
    frontier = [initial]
    while frontier:
        following: list[State] = []
        for state in frontier:
            for _, after, violation in moves(state):
                if violation:
                    way = _way(initial, moves, violation) if trace else []
                    return Result(len(seen), time.perf_counter() - begin, violation, way, True, seen)
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        if len(seen) > most:
            return Result(len(seen), time.perf_counter() - begin, "", [], False, seen)
        frontier = following
    return Result(len(seen), time.perf_counter() - begin, "", [], True, seen)


def _way(initial: State, moves: Callable[[State], Iterable[tuple[str, State, str]]], wanted: str) -> list[str]:
    came: dict[State, tuple[State, str] | None] = {initial: None}
    frontier = [initial]
    while frontier:
        following: list[State] = []
        for state in frontier:
            for label, after, violation in moves(state):
                if violation == wanted:
                    way = [label]
                    back = came[state]
                    while back is not None:
                        way.append(back[1])
                        back = came[back[0]]
                    return way[::-1]
                if after not in came:
                    came[after] = (state, label)
                    following.append(after)
        frontier = following
    return []
