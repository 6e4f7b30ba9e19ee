"""Build a run's sink from the options that the journal has recorded, without a Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from connector.formats.discovery import find_sink
from connector.location.location import CheckpointLocation
from connector.spark.recorded_options import PROVIDER, confirmed_options, leads_out, of_storage
from transactional.errors import LocationError, OptionError, StoreError
from transactional.ledger import Ledger, RunRecord
from transactional.rewind import NothingToRewindError
from transactional.secrets import hiding, is_secret, secrets_of
from transactional.sink import Options, TwoPhaseCommitSink

if TYPE_CHECKING:
    from connector.spark.hosted_sink import HostedSink

TYPES = ("fields", "type", "elementType", "keyType", "valueType")
"""The keys, in the JSON of a Spark data type, whose values are also data types."""


def recorded_run(ledger: Ledger) -> RunRecord:
    """Return the newest run. Raise an error if there is none, or if the location is a copy on which no query has run yet."""
    run = ledger.newest_run
    if run is None:
        raise NothingToRewindError("NOTHING_TO_REWIND", reason="the journal contains no run of the query")
    if run.prefix in ledger.originals:
        raise LocationError("ADOPTED_NOT_STARTED")
    return run


def recorded_host(
    run: RunRecord, location: CheckpointLocation, given: Mapping[str, str], hooks: bool = True
) -> HostedSink:
    """Return the run's sink with the options that the operator gave and those that the journal has recorded.

    Raises OptionError if a recorded option needs the operator's confirmation. If `hooks` is False, the sink gets no
    recorded checkpoint hooks.
    """
    from pyspark.sql.types import StructType

    from connector.spark.hosted_sink import HostedSink

    if not run.setup:
        raise OptionError("SINK_NOT_RECORDED", run=run.token)
    sink = find_sink(run.sink, str(run.setup.get("class", "")))
    options = {**confirmed_options(run.setup["options"], given, hooks), **given, **location.as_options()}
    return HostedSink(sink, Options(options), StructType.fromJson(without_classes(run.setup["schema"])))


def without_classes(kind: Any) -> Any:
    """Replace user-defined types by SQL types in a data type's JSON, so that PySpark does not import their classes."""
    if isinstance(kind, list):
        return [without_classes(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    if kind.get("type") == "udt":
        return without_classes(kind["sqlType"])
    return {key: without_classes(each) if key in TYPES else each for key, each in kind.items()}


def recorded_sink(
    run: RunRecord, location: CheckpointLocation, given: Mapping[str, str]
) -> TwoPhaseCommitSink[Any, Any]:
    """Build the run's sink from its recorded options and the options that the operator gave; see `recorded_host`."""
    host = recorded_host(run, location, given, hooks=False)
    try:
        return host.build(run.prefix)
    except OptionError as problem:
        raise problem.with_note(
            "The sink was built from the options in the journal, which contains no secrets: pass secrets with --options-file."
        ) from problem


def fitting(run: RunRecord, given: Mapping[str, str]) -> dict[str, str]:
    """Select the options for this run's sink from `given`, the options that several queries share.

    Secrets and addresses of other queries' sinks are left out, because this sink would reject them.
    """
    known = {*run.setup.get("hidden", ()), *run.setup.get("options", ())}
    found = {key: value for key, value in given.items() if key.lower() in known or not _of_one_sink(key, value)}
    if _gives_secrets(given) and not _gives_secrets(found):
        # The given addresses are for the sinks that get the secrets. This sink uses its recorded addresses.
        return {key: value for key, value in found.items() if of_storage(key) or not leads_out(key, value)}
    return found


def _gives_secrets(options: Mapping[str, str]) -> bool:
    return any(is_secret(*each) or each[0].lower().endswith(PROVIDER) for each in options.items())


def _of_one_sink(key: str, value: str) -> bool:
    return is_secret(key, value) or leads_out(key, value)


def missing_secrets(run: RunRecord, given: Mapping[str, str]) -> list[str]:
    """Return the keys of the secret options that the run's sink had, and that `given` lacks.

    The journal of an earlier release may contain the value of an option that now counts as a secret. That value is not used.
    """
    known = {key.lower() for key in given}
    shown = (key.lower() for key, value in run.setup.get("options", {}).items() if is_secret(key, value))
    return [key for key in [*run.setup.get("hidden", ()), *shown] if key not in known]


def can_be_built(run: RunRecord, location: CheckpointLocation, given: Mapping[str, str]) -> bool:
    """Return whether the run's sink and hooks can be built: no secret is missing, and no recorded option needs confirmation."""
    try:
        recorded_host(run, location, given)
    except OptionError:
        return False
    return not missing_secrets(run, given)


@contextmanager
def naming_secrets(run: RunRecord, given: Mapping[str, str]) -> Iterator[None]:
    """Run a block. If it fails while secrets of the sink are missing, add the names of the missing options to the error."""
    missing = missing_secrets(run, given)
    try:
        with hiding(secrets_of(given)):
            yield
    except (OptionError, StoreError) as problem:
        if not missing:
            raise
        raise problem.with_note(
            f"The journal contains no secrets, but the sink had {', '.join(missing)}: pass them with --options-file, or "
            "supervise(..., options=...)."
        ) from problem
