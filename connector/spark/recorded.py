"""The sink of a run as the journal has recorded it, built where no Spark is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from connector.spark.location import CheckpointLocation
from transactional.errors import LocationError, OptionError, StoreError
from transactional.ledger import Ledger, RunRecord
from transactional.secrets import hides_value, hiding, secrets_of
from transactional.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from connector.spark.hosted_sink import HostedSink

__all__ = ["fitting", "missing_secrets", "naming_secrets", "recorded_host", "recorded_run", "recorded_sink"]


def recorded_run(ledger: Ledger) -> RunRecord:
    """The newest run.

    Raises
    ------
    LocationError
        There is none; or it is one of the location that this one is a copy of.
    """
    run = ledger.newest_run
    if run is None:
        raise LocationError("NOTHING_TO_REWIND", "no run of the query is in the journal: start it")
    if run.prefix in ledger.originals:
        raise LocationError(
            "ADOPTED_NOT_STARTED",
            "this location is a copy (`barrier adopt --no-claim`) on which no query has run yet, and what the journal names is "
            "its original's: start the query first",
        )
    return run


def recorded_host(run: RunRecord, location: CheckpointLocation, given: Mapping[str, str]) -> HostedSink:
    """The run's sink with its options.

    Parameters
    ----------
    run : RunRecord
    location : CheckpointLocation
    given : Mapping[str, str]
        Options that the journal does not keep (secrets), or that have changed.

    Raises
    ------
    OptionError
        ``SINK_NOT_RECORDED``, ``UNKNOWN_SINK``
    """
    from connector.spark.hosted_sink import HostedSink

    if not run.setup:
        raise OptionError(
            "SINK_NOT_RECORDED",
            f"run {run.token} was journalled by a version that did not record its sink: start the query once with this version",
        )
    return HostedSink.from_setup(run.setup, {**given, "checkpointLocation": location.path})


def recorded_sink(
    run: RunRecord, location: CheckpointLocation, given: Mapping[str, str]
) -> TwoPhaseCommitSink[Any, Any]:
    """The run's sink; see `recorded_host`.

    Raises
    ------
    OptionError
    """
    host = recorded_host(run, location, given)
    try:
        return host.build(run.prefix)
    except OptionError as problem:
        raise OptionError(
            problem.condition,
            f"{problem.message} (of the query's sink as the journal recorded it, which keeps no secrets: give those with "
            "--options-file)",
            **problem.parameters,
        ) from problem


def fitting(run: RunRecord, given: Mapping[str, str]) -> dict[str, str]:
    """Of options that several queries share: without the secrets of other sinks, which this one would refuse.

    Parameters
    ----------
    run : RunRecord
    given : Mapping[str, str]
    """
    hidden = run.setup.get("hidden", ())
    return {key: value for key, value in given.items() if key.lower() in hidden or not hides_value(key)}


def missing_secrets(run: RunRecord, given: Mapping[str, str]) -> list[str]:
    """Options that the run's sink had, which neither the journal keeps nor `given` holds."""
    known = {key.lower() for key in given}
    return [key for key in run.setup.get("hidden", ()) if key not in known]


@contextmanager
def naming_secrets(run: RunRecord, given: Mapping[str, str]) -> Iterator[None]:
    """Say which of the sink's secrets are missing, where it fails and the journal has left some out. Quotes none."""
    missing = missing_secrets(run, given)
    try:
        with hiding(secrets_of(given)):
            yield
    except (OptionError, StoreError) as problem:
        if not missing:
            raise
        raise type(problem)(
            problem.condition,
            f"{problem.message} (the journal keeps no secrets, and the sink had {', '.join(missing)}: give them with "
            "--options-file, or supervise(..., options=...))",
            **problem.parameters,
        ) from problem
