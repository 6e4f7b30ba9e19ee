"""Find a sink class by its format's name. Code that is named only in a journal is never imported.

A command searches in this order: sinks that the program has registered, sinks of this package, entry points of installed
packages (group ``barrier_kafka.sinks``), and import paths in the environment variable ``BARRIER_ALLOW``.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, TypeGuard

from connector.formats.table import SINKS
from transactional.capabilities import NamesDatasets
from transactional.errors import OptionError
from transactional.sink import Options, TwoPhaseCommitSink

log = logging.getLogger(__name__)

SinkType = type[TwoPhaseCommitSink[Any, Any]]

ALLOW: Final = "BARRIER_ALLOW"
"""The environment variable that lists the import paths (``package.module:Name``) that commands may use, separated by commas."""

OFFERED: Final = "barrier_kafka.sinks"
GROUPS: Final = (OFFERED, "barrier_kafka.hooks", "barrier_kafka.token_providers")
"""Groups of entry points. Commands may import the entry points that installed packages offer in these groups."""

_OURS: Final = {each.name: each.path for each in SINKS}

_registered: dict[str, SinkType] = {}


def remember_sink(sink: SinkType) -> None:
    """Remember a sink by its format's name, so that `find_sink` finds it in this process, as `supervise` requires."""
    _registered[sink.name()] = sink


def find_sink(name: str, recorded: str = "") -> SinkType:
    """Return the sink class of a format.

    Parameters
    ----------
    name : str
        The format's name.
    recorded : str
        The sink's import path according to the journal. This path is only quoted in the error, and never imported.

    Raises
    ------
    OptionError
        ``UNKNOWN_SINK``: no format has this name, or its class can't be imported.
    """
    if name in _registered:
        return _registered[name]
    if name in _OURS:
        return _sink(_OURS[name])
    for offered in entry_points(group=OFFERED):
        if offered.name == name:
            return _sink(offered.value)
    for path in _allowed_here():
        found = _imported(path)
        if _is_sink(found) and found.name() == name:
            return found
    raise OptionError(
        "UNKNOWN_SINK", sink=name, reason="no format of that name is known", recorded=recorded or "package.module:Class"
    )


def datasets_of(
    format_: str, options: Options, output: Mapping[str, Any], find: Callable[[str], SinkType] = find_sink
) -> Collection[tuple[str, str]]:
    """Return the OpenLineage datasets of a sink, as (namespace, name). Empty if the sink is unknown or names none."""
    try:
        sink = find(format_)
    except OptionError as problem:
        log.warning("the datasets of the format %s are unknown: %s", format_, problem)
        return ()
    return sink.datasets(options, output) if issubclass(sink, NamesDatasets) else ()


def allowed_paths() -> frozenset[str]:
    """Return the import paths that commands may import: those in ``BARRIER_ALLOW``, and installed packages' entry points."""
    return frozenset(_allowed_here()) | {each.value for group in GROUPS for each in entry_points(group=group)}


def _allowed_here() -> Iterator[str]:
    yield from filter(None, (path.strip() for path in os.environ.get(ALLOW, "").split(",")))


def _sink(path: str) -> SinkType:
    found = _imported(path)
    if not _is_sink(found):
        raise OptionError("UNKNOWN_SINK", sink=path, reason="it is not a subclass of TwoPhaseCommitSink", recorded=path)
    return found


def _is_sink(found: Any) -> TypeGuard[SinkType]:
    return isinstance(found, type) and issubclass(found, TwoPhaseCommitSink)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise OptionError(
            "UNKNOWN_SINK", sink=path, reason=f"it can't be imported ({problem})", recorded=path
        ) from problem
