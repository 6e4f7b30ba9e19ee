"""When a failed query is started again. Pure: time and chance are parameters.

The strategies are Flink's, by their names and with their meanings.
"""

from __future__ import annotations

import difflib
import os
import random
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transactional.clock import Clock, SystemClock
from transactional.errors import OptionError

__all__ = [
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "Life",
    "NoRestart",
    "RestartStrategy",
    "Restarts",
    "from_config",
    "from_settings",
]

LONGEST_SECONDS = 10_000 * 86400.0
"""Of a duration in a configuration: a longer one is a slip, and clocks do not sleep for any number of seconds."""

KEPT_LIVES = 10_000
"""More than any failure rate counts; a query that fails every second for three hours."""


class Life(NamedTuple):
    """From one start to its failure, in seconds of one clock."""

    began: float
    failed: float


class RestartStrategy(ABC):
    """Decides whether, and after how long, a failed query is started again. Immutable; `Restarts` counts for it."""

    @abstractmethod
    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """Return the seconds until the next start; None to give up.

        Parameters
        ----------
        restarts : int
            Number of restarts until now.
        lives : Sequence[Life]
            The last ones, oldest first; the last of them has just failed.
        chance : float
            At random from 0 to 1.
        """


@dataclass(frozen=True)
class NoRestart(RestartStrategy):
    """The first failure is the last."""

    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """See `RestartStrategy`."""
        return None


@dataclass(frozen=True)
class FixedDelay(RestartStrategy):
    """A number of restarts in all, each after the same time.

    Parameters
    ----------
    attempts : int
        Restarts, from 0.
    delay : float
    """

    attempts: int = 1
    delay: float = 1.0

    def __post_init__(self) -> None:
        _check("attempts", self.attempts, self.attempts >= 0, "from 0")
        _check("delay", self.delay, self.delay >= 0, "from 0 seconds")

    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """See `RestartStrategy`."""
        return self.delay if restarts < self.attempts else None


@dataclass(frozen=True)
class FailureRate(RestartStrategy):
    """Restarts as long as at most `max_failures` fall into the interval that ends now.

    Parameters
    ----------
    max_failures : int
        From 1: with 3 the fourth failure within the interval is the last.
    interval : float
        Seconds.
    delay : float
    """

    max_failures: int = 1
    interval: float = 60.0
    delay: float = 1.0

    def __post_init__(self) -> None:
        _check("max_failures", self.max_failures, 1 <= self.max_failures < KEPT_LIVES, f"from 1, below {KEPT_LIVES}")
        _check("interval", self.interval, self.interval > 0, "more than 0 seconds")
        _check("delay", self.delay, self.delay >= 0, "from 0 seconds")

    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """See `RestartStrategy`."""
        now = lives[-1].failed
        recent = sum(now - life.failed <= self.interval for life in lives)
        return self.delay if recent <= self.max_failures else None


@dataclass(frozen=True)
class ExponentialDelay(RestartStrategy):
    """Restarts for ever, each after a longer delay up to a limit; a life that lasted long enough resets the delay.

    Parameters
    ----------
    initial, maximum : float
        Seconds: the first delay, and the longest.
    multiplier : float
        Of each delay to the one before.
    reset_after : float
        Seconds that the query has to run for the next delay to be `initial` again.
    jitter : float
        From 0 to 1: a delay is longer or shorter by up to this part of it, at random, so that queries that failed together
        do not start together. It stays between `initial` and `maximum`.
    """

    initial: float = 1.0
    maximum: float = 60.0
    multiplier: float = 1.5
    reset_after: float = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _check("initial", self.initial, self.initial > 0, "more than 0 seconds")
        _check("maximum", self.maximum, self.maximum >= self.initial, "from the initial delay")
        _check("multiplier", self.multiplier, self.multiplier > 1, "more than 1")
        _check("reset_after", self.reset_after, self.reset_after > 0, "more than 0 seconds")
        _check("jitter", self.jitter, 0 <= self.jitter <= 1, "from 0 to 1")

    def pause(self, restarts: int, lives: Sequence[Life], chance: float) -> float | None:
        """See `RestartStrategy`."""
        found = self.initial
        for life in list(lives)[:0:-1]:  # the first life was no restart
            if life.failed - life.began >= self.reset_after or found >= self.maximum:
                break
            found *= self.multiplier
        return max(self.initial, min(found * (1 + self.jitter * (2 * chance - 1)), self.maximum))


class Restarts:
    """Counts a query's lives for a strategy.

    Parameters
    ----------
    strategy : RestartStrategy
    clock : Clock, optional
    chance : Callable[[], float], optional
        Numbers at random from 0 to 1.

    Attributes
    ----------
    number : int
        Restarts that it has granted.
    """

    def __init__(
        self, strategy: RestartStrategy, clock: Clock | None = None, chance: Callable[[], float] = random.random
    ) -> None:
        self.strategy = strategy
        self.number = 0
        self._clock = clock or SystemClock()
        self._chance = chance
        self._lives: deque[Life] = deque(maxlen=KEPT_LIVES)
        self._began = self._clock.monotonic()

    def began(self) -> None:
        """Record that the query is started now."""
        self._began = self._clock.monotonic()

    def failed(self) -> float | None:
        """Record that it has failed now; return the seconds until it is to be started again, None to give up."""
        self._lives.append(Life(self._began, self._clock.monotonic()))
        delay = self.strategy.pause(self.number, list(self._lives), self._chance())
        self.number += delay is not None
        return delay


# -- configuration ---------------------------------------------------------------------------------------------------

TYPE = "restart-strategy.type"

_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("none", "off", "disable"), "none"),
    **dict.fromkeys(("fixed-delay", "fixeddelay"), "fixed-delay"),
    **dict.fromkeys(("failure-rate", "failurerate"), "failure-rate"),
    **dict.fromkeys(("exponential-delay", "exponentialdelay"), "exponential-delay"),
}

_SECONDS: Mapping[str, float] = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


def _seconds(text: str) -> float:
    """Parse a duration as Flink writes it: ``10 s``, ``1min``; a number alone is milliseconds."""
    found = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.strip().lower())
    if found is None or (found[2] or "ms") not in _SECONDS:
        raise ValueError('a duration ("10 s", "1 min", "500 ms"; a number alone is milliseconds)')
    seconds = float(found[1]) * _SECONDS[found[2] or "ms"]  # of many digits: infinite, where an int would raise
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"a duration of at most {LONGEST_SECONDS / _SECONDS['d']:.0f} days")
    return seconds


def _whole(text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise ValueError("a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise ValueError("a number") from None


_KEYS: Mapping[str, Mapping[str, tuple[str, Callable[[str], float]]]] = {
    "none": {},
    "fixed-delay": {"attempts": ("attempts", _whole), "delay": ("delay", _seconds)},
    "failure-rate": {
        "max-failures-per-interval": ("max_failures", _whole),
        "failure-rate-interval": ("interval", _seconds),
        "delay": ("delay", _seconds),
    },
    "exponential-delay": {
        "initial-backoff": ("initial", _seconds),
        "max-backoff": ("maximum", _seconds),
        "backoff-multiplier": ("multiplier", _number),
        "reset-backoff-threshold": ("reset_after", _seconds),
        "jitter-factor": ("jitter", _number),
    },
}

_KINDS: Mapping[str, Callable[..., RestartStrategy]] = {
    "none": NoRestart,
    "fixed-delay": FixedDelay,
    "failure-rate": FailureRate,
    "exponential-delay": ExponentialDelay,
}


def from_config(config: Mapping[str, str] | None = None) -> RestartStrategy:
    """Return the strategy that a configuration names, by Flink's keys; `ExponentialDelay` as Flink has it by default.

    Parameters
    ----------
    config : Mapping[str, str], optional
        ``restart-strategy.type`` (none, fixed-delay, failure-rate, exponential-delay) and ``restart-strategy.<type>.<key>``;
        other keys are left alone. By default the environment, where the same keys are written
        ``BARRIER_RESTART_STRATEGY_TYPE``, ``BARRIER_RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS``, ...; other variables that begin
        with ``BARRIER_RESTART`` are refused.

    Raises
    ------
    OptionError
        ``UNKNOWN_OPTION``, ``INVALID_OPTION``
    """
    given = _from_environment(os.environ) if config is None else {key.lower(): text for key, text in config.items()}
    name = _name(given)
    for key in given:
        if key.startswith("restart-strategy.") and key != TYPE and key not in _known():
            raise _unknown_option(key, f"known are {TYPE}, {', '.join(sorted(_known()))}.")
    values: dict[str, float] = {}
    for key, (field, parse) in _KEYS[name].items():
        text = given.get(f"restart-strategy.{name}.{key}")
        if text is None:
            continue
        try:
            values[field] = parse(text)
        except ValueError as expected:
            raise _invalid(f"restart-strategy.{name}.{key}", text, str(expected)) from None
    return _KINDS[name](**values)


def from_settings(settings: Mapping[str, str]) -> RestartStrategy:
    """Return the strategy that these settings choose, key by key, over what the environment says. Each setting has to count.

    Parameters
    ----------
    settings : Mapping[str, str]
        As `from_config` takes them.

    Raises
    ------
    OptionError
        ``UNKNOWN_OPTION``: an unknown key, or one of another strategy than the one that is chosen.
    """
    given = {key.lower(): text for key, text in settings.items()}
    config = {**_from_environment(os.environ), **given}
    name = _name(config)
    for key in given:
        if key != TYPE and key not in _known():
            raise _unknown(key, {TYPE, *_known()})
        if key != TYPE and not key.startswith(f"restart-strategy.{name}."):
            raise _unknown_option(key, f"it counts for nothing, as the strategy is {name}.")
    return from_config(config)


def _name(config: Mapping[str, str]) -> str:
    """Return the strategy's name."""
    named = config.get(TYPE, "exponential-delay").strip().lower()
    if named not in _NAMES:
        raise _invalid(TYPE, config[TYPE], f"one of {', '.join(_KEYS)}")
    return _NAMES[named]


def _known() -> set[str]:
    return {f"restart-strategy.{name}.{key}" for name, keys in _KEYS.items() for key in keys}


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    keys = [TYPE, *_known()]
    named = {f"BARRIER_{re.sub('[^A-Z]', '_', key.upper())}": key for key in keys}
    for variable in environment:
        if variable.startswith("BARRIER_RESTART") and variable not in named:
            raise _unknown(variable, named)
    return {key: environment[variable] for variable, key in named.items() if variable in environment}


def _unknown(key: str, known: Collection[str]) -> OptionError:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(sorted(known))}."
    return _unknown_option(key, hint)


def _unknown_option(key: str, hint: str) -> OptionError:
    return OptionError("UNKNOWN_OPTION", owner="The restart strategy", option=key, hint=hint)


def _check(what: str, value: float, holds: bool, expected: str) -> None:
    if not holds:
        raise _invalid(what, str(value), expected)


def _invalid(what: str, value: str, expected: str) -> OptionError:
    return OptionError("INVALID_OPTION", owner="The restart strategy", option=what, value=value, expectation=expected)
