"""Read a restart strategy from a configuration with Flink's keys. `transactional.restart` defines the strategies."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from connector.options import Option, OptionTable, as_duration_ms, as_version
from transactional.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy

TYPE: Final = "restart-strategy.type"

LONGEST_DAYS = 10_000
"""The longest accepted duration, in days. A longer one is probably a mistake, and too long for ``sleep``."""

_KINDS: Final[Mapping[str, Callable[..., RestartStrategy]]] = {
    "none": NoRestart,
    "fixed-delay": FixedDelay,
    "failure-rate": FailureRate,
    "exponential-delay": ExponentialDelay,
}

_ALSO: Final = {"off": "none", "disable": "none", **{name.replace("-", ""): name for name in _KINDS}}


def _name(text: str) -> str:
    name = text.strip().lower()
    if _ALSO.get(name, name) not in _KINDS:
        raise ValueError(f"one of {', '.join(_KINDS)}")
    return _ALSO.get(name, name)


def _seconds(text: str) -> float:
    try:
        milliseconds = as_duration_ms(text)
    except ValueError as form:
        raise ValueError(f"a duration of at most {LONGEST_DAYS} days: {form}") from None
    if milliseconds > LONGEST_DAYS * 86_400_000:
        raise ValueError(f"a duration of at most {LONGEST_DAYS} days")
    return milliseconds / 1000


def _number(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise ValueError("a number") from None


_FIELDS: Final[Mapping[str, tuple[str, Callable[[str], Any], str]]] = {
    "fixed-delay.attempts": ("attempts", as_version, "How many restarts are allowed in total."),
    "fixed-delay.delay": ("delay", _seconds, "Delay before each restart."),
    "failure-rate.max-failures-per-interval": (
        "max_failures",
        as_version,
        "How many failures are allowed within the interval. If there are more failures, the query ends.",
    ),
    "failure-rate.failure-rate-interval": ("interval", _seconds, "Length of the interval for counting failures."),
    "failure-rate.delay": ("delay", _seconds, "Delay before each restart."),
    "exponential-delay.initial-backoff": ("initial", _seconds, "The first delay."),
    "exponential-delay.max-backoff": ("maximum", _seconds, "The longest delay."),
    "exponential-delay.backoff-multiplier": (
        "multiplier",
        _number,
        "Each delay is the previous delay times this factor.",
    ),
    "exponential-delay.reset-backoff-threshold": (
        "reset_after",
        _seconds,
        "If a run lasts this long, the next delay is initial-backoff again.",
    ),
    "exponential-delay.jitter-factor": (
        "jitter",
        _number,
        "Largest random change of a delay, as a fraction of the delay.",
    ),
}
"""For each configuration key: the field of the strategy, the parser, and the description."""


def _table(named: Callable[[str], str]) -> OptionTable:
    options = [Option(named(TYPE), "exponential-delay", _name, "The restart strategy.")]
    options += [Option(named(f"restart-strategy.{key}"), None, parse, doc) for key, (_, parse, doc) in _FIELDS.items()]
    return OptionTable("restart strategy", options, passthrough_prefixes=())


def _variable(key: str) -> str:
    return f"BARRIER_{re.sub('[^A-Z]', '_', key.upper())}"


_TABLE: Final = _table(str)
_VARIABLES: Final = _table(_variable)


def from_config(config: Mapping[str, str] | None = None) -> RestartStrategy:
    """Return the restart strategy that a configuration describes with Flink's keys.

    Parameters
    ----------
    config : Mapping[str, str], optional
        Keys that do not begin with ``restart-strategy.`` are ignored. By default, environment variables
        (``BARRIER_RESTART_STRATEGY_TYPE``, ...) are read.

    Returns
    -------
    RestartStrategy
        `ExponentialDelay` with Flink's values, if the configuration names no strategy.
    """
    if config is None:
        return _strategy(_environment())
    ours = {key: text for key, text in config.items() if key.lower().startswith("restart-strategy.")}
    return _strategy(_TABLE.parse(ours))


def _environment() -> Mapping[str, Any]:
    ours = {name: text for name, text in os.environ.items() if name.startswith("BARRIER_RESTART")}
    values = _VARIABLES.parse(ours)
    return {key: values[_variable(key)] for key in _TABLE.parse({})}


def _strategy(values: Mapping[str, Any]) -> RestartStrategy:
    kind = values[TYPE]
    fields = {
        field: values[f"restart-strategy.{key}"] for key, (field, _, _) in _FIELDS.items() if key.startswith(kind)
    }
    return _KINDS[kind](**{field: value for field, value in fields.items() if value is not None})
