"""Tables of options, one for each format. The parser, the docs and a test read the same table."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from transactional.errors import OptionError
from transactional.secrets import HIDDEN, hides_value, is_secret

__all__ = [
    "HOST_OPTIONS",
    "REQUIRED",
    "Option",
    "OptionTable",
    "ParsedOptions",
    "as_bool",
    "as_choice",
    "as_columns",
    "as_duration_ms",
    "as_json",
    "as_positive_int",
    "as_str",
    "as_version",
    "hides_value",
    "prefix_of",
    "shown_value",
]


class _Required:
    """The type of `REQUIRED`. A copy or a pickle of `REQUIRED` is the same object, so ``is`` compares correctly."""

    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""The default of an option that the user must set."""


def shown_value(key: str, value: str) -> str:
    """Return an option's value for messages and logs: a placeholder if the value is a secret."""
    return HIDDEN if is_secret(key, value) else value


def prefix_of(options: Mapping[str, str]) -> str | None:
    """Return the user's ``transactionalIdPrefix``, without spaces around it; None if it is not set."""
    return options.get("transactionalIdPrefix", "").strip() or None


def as_str(text: str) -> str:
    """Return the text without spaces around it. Raise ValueError if nothing is left."""
    if not text.strip():
        raise ValueError("text that is not empty")
    return text.strip()


def as_bool(text: str) -> bool:
    """Parse ``true`` or ``false``, in upper or lower case."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("true or false")
    return lowered == "true"


def as_positive_int(text: str) -> int:
    """Parse a whole number, 1 or more."""
    try:
        number = int(text.strip())
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("a whole number, 1 or more")
    return number


def as_version(text: str) -> int:
    """Parse a whole number, 0 or more."""
    number = text.strip()
    if not (number.isascii() and number.isdigit()):
        raise ValueError("a whole number, 0 or more")
    return int(number)


_MILLISECONDS: Final = {
    **dict.fromkeys(("", "ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_DURATION: Final = re.compile(r"([0-9]{1,12})\s*([a-z]*)")
_DURATION_FORM: Final = 'milliseconds (30000), or a whole number with ms, s, min, h or d ("500ms", "30s", "5 min")'


def as_duration_ms(text: str) -> int:
    """Parse a duration and return it in milliseconds, 0 or more. A number without a unit counts as milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _MILLISECONDS:
        raise ValueError(_DURATION_FORM)
    return int(found[1]) * _MILLISECONDS[found[2]]


def as_choice(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts each of `choices`, ignores case, and returns the choice as `choices` spells it."""
    by_lower = {choice.lower(): choice for choice in choices}

    def parse(text: str) -> str:
        try:
            return by_lower[text.strip().lower()]
        except KeyError:
            raise ValueError(" or ".join(choices)) from None

    return parse


def as_columns(text: str) -> tuple[str, ...]:
    """Parse column names, separated by commas or as a JSON array. No name may occur twice, regardless of case."""
    stripped = text.strip()
    names: Any = stripped.split(",")
    if stripped.startswith("["):
        try:
            names = json.loads(stripped)
        except ValueError:
            names = None
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError('column names separated by commas, or JSON: ["one", "with, comma"]')
    columns = tuple(name.strip() for name in names)
    if len({name.lower() for name in columns}) < len(columns):
        raise ValueError("a list that contains each column only once")
    return columns


def as_json(text: str) -> Any:
    """Parse a JSON value of any type."""
    try:
        return json.loads(text)
    except ValueError as problem:
        raise ValueError(f"JSON ({problem})") from None


@dataclass(frozen=True)
class Option:
    """One option: a row of an `OptionTable`.

    Parameters
    ----------
    key : str
        The option's name, as users write it. Case is ignored, because Spark lower-cases keys.
    default : Any
        The parsed value (not its text) if the user does not set the option; `REQUIRED` if the user must set it.
    parse : Callable[[str], Any]
        Parses the text of the value. If the text is wrong, it raises ValueError; the message says which values are valid
        ("a whole number, 1 or more").
    doc : str
        The description for the page of options: one or two sentences.
    since : str
        The release that added the option.
    """

    key: str
    default: Any
    parse: Callable[[str], Any]
    doc: str
    since: str = "0.9.0"


class ParsedOptions(Mapping[str, Any]):
    """The parsed options, as a mapping from key to value. An option that the user did not set has its default.

    The case of keys is ignored.

    Parameters
    ----------
    values : Mapping[str, Any]
        The value of every option, by its key.
    passthrough : Mapping[str, str]
        Options that are not parsed, but passed on unchanged, such as ``kafka.acks``. The keys are in lower case and include
        the prefix.
    given : Sequence[str]
        Keys that the user set.
    """

    def __init__(self, values: Mapping[str, Any], passthrough: Mapping[str, str], given: Sequence[str]) -> None:
        self._keys = {key.lower(): key for key in values}
        self._values = dict(values)
        self.passthrough = dict(passthrough)
        self._given = frozenset(key.lower() for key in given)

    def __getitem__(self, key: str) -> Any:
        return self._values[self._keys[key.lower()]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def given(self, key: str) -> bool:
        """Return whether the user set the option; otherwise its value is the default."""
        return key.lower() in self._given

    def __repr__(self) -> str:  # values may be secrets
        return f"ParsedOptions({sorted(self._given)}, passthrough={sorted(self.passthrough)})"


class OptionTable:
    """All options of one format.

    Parameters
    ----------
    name : str
        The format's name, for messages (``barrier-kafka``).
    options : Sequence[Option]
        The options that users may set.
    passthrough_prefixes : Sequence[str]
        Options whose key starts with one of these prefixes are not parsed, but passed on unchanged.
    passed_to : str
        The receiver of the options that are passed on, for messages ("the client").
    """

    def __init__(
        self,
        name: str,
        options: Sequence[Option],
        passthrough_prefixes: Sequence[str] = ("kafka.",),
        passed_to: str = "the client",
    ) -> None:
        self.name = name
        self.passed_to = passed_to
        self.options = tuple(options)
        self.passthrough_prefixes = tuple(passthrough_prefixes)
        self._by_key = {option.key.lower(): option for option in self.options}

    def parse(self, options: Mapping[str, str], also: OptionTable | None = None) -> ParsedOptions:
        """Check and parse the options that the user set.

        Parameters
        ----------
        options : Mapping[str, str]
            The options as Spark passes them. The case of keys is ignored.
        also : OptionTable, optional
            Another table whose options the user may set as well, such as `HOST_OPTIONS`. If both tables have an option,
            the one in this table is used.

        Raises
        ------
        OptionError
            ``UNKNOWN_OPTION`` (the message suggests the most similar option), ``INVALID_OPTION`` or ``MISSING_OPTION``.
        """
        known = {**(also._by_key if also else {}), **self._by_key}
        values = {option.key: option.default for option in known.values()}
        prefixes = self.passthrough_prefixes + (also.passthrough_prefixes if also else ())
        passthrough: dict[str, str] = {}
        given: list[str] = []
        for key, text in options.items():
            lowered = key.lower()
            option = known.get(lowered)
            if option is not None:
                values[option.key] = self._parse_one(option, text)
                given.append(option.key)
            elif any(lowered.startswith(prefix) for prefix in prefixes):
                passthrough[lowered] = text
            else:
                raise self._unknown(key, [o.key for o in known.values()], prefixes)
        missing = [key for key, value in values.items() if value is REQUIRED]
        if missing:
            reason = known[missing[0].lower()].doc.removesuffix(".")
            raise OptionError("MISSING_OPTION", owner=self.name, option=missing[0], reason=reason)
        return ParsedOptions(values, passthrough, given)

    def invalid(self, key: str, text: str, expectation: str) -> OptionError:
        """Return an ``INVALID_OPTION`` error that a sink raises if a check needs more than one option, or the store."""
        shown = shown_value(key, text)
        return OptionError("INVALID_OPTION", owner=self.name, option=key, value=shown, expectation=expectation)

    def _parse_one(self, option: Option, text: str) -> Any:
        try:
            return option.parse(text)
        except ValueError as expectation:
            # Some parsers quote the text in their error, so the error of a secret option's parser must not be shown.
            expected = "another value" if is_secret(option.key, text) else str(expectation)
            raise self.invalid(option.key, text, expected) from None

    def _unknown(self, key: str, keys: Sequence[str], prefixes: Sequence[str]) -> OptionError:
        by_lower = {k.lower(): k for k in keys}
        # The usual mistake is to forget the prefix: 'bootstrap.servers'.
        by_lower.update({f"{prefix}bootstrap.servers": f"{prefix}bootstrap.servers" for prefix in prefixes})
        near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
        hint = f"did you mean {by_lower[near[0]]}?" if near else f"known options: {', '.join(sorted(keys))}."
        passed = f" Options that start with {prefixes[0]} go to {self.passed_to}." if prefixes else ""
        nearest = by_lower[near[0]] if near else None
        return OptionError("UNKNOWN_OPTION", owner=self.name, option=key, hint=f"{hint}{passed}", nearest=nearest)


HOST_OPTIONS = OptionTable(
    "2pc",
    (
        Option("checkpointLocation", None, as_str, "Spark's checkpoint location. The journal is a folder in it."),
        Option("queryName", None, as_str, "The query's name in Spark."),
        Option("path", None, as_str, "The argument of start(path)."),
        Option(
            "commitTimeoutMs",
            120_000,
            as_positive_int,
            "How many milliseconds the commit of a decided checkpoint may take. After this time, the query fails. If you then "
            "restart the query, it continues the commit.",
        ),
        Option(
            "deliveryGuarantee",
            "exactly-once",
            as_choice("exactly-once", "at-least-once"),
            "exactly-once: rows become visible with their checkpoint. at-least-once: rows become visible immediately; "
            "after a failure, some rows are written twice.",
        ),
        Option(
            "transactionalIdPrefix",
            None,
            as_str,
            "The prefix of the names of all transactions of this query. Default: the query id. No other query may use the same "
            "prefix.",
        ),
        Option(
            "txnAppId",
            None,
            as_str,
            "df.write only: the name of the writing job. No other job may use this name at this checkpointLocation.",
        ),
        Option(
            "txnVersion",
            None,
            as_version,
            "df.write only: the number of this write. Numbers must increase. Each number is written once, even if you repeat "
            "the write. In foreachBatch, pass the batch id.",
        ),
        Option(
            "txnCompareRows",
            True,
            as_bool,
            "df.write only. true: if you repeat a version with different rows, the repeated write fails. false: the rows are "
            "not compared, for a DataFrame that is computed differently each time. In both cases, the output keeps the rows of "
            "the first write.",
        ),
        Option(
            "singleDriver",
            False,
            as_bool,
            "Needed if the store of the checkpoint location can't create a file exclusively, or is an HDFS with Kerberos. With "
            "true, you confirm that something else guarantees a single driver per location.",
        ),
        Option(
            "checkpointEndpoint",
            None,
            as_str,
            "URL of the object store that holds checkpointLocation. Default: AWS_ENDPOINT_URL in the driver's environment. If "
            "checkpointLocation is in HDFS: the WebHDFS addresses of the NameNodes, separated by commas. Default for HDFS: the "
            "addresses in BARRIER_WEBHDFS.",
        ),
        Option(
            "checkpointRegion",
            None,
            as_str,
            "Region of the object store that holds checkpointLocation. Default: AWS_REGION in the driver's environment. "
            "Credentials for the object store come from the environment only.",
        ),
        Option(
            "maxBatchesPerCheckpoint",
            50,
            as_positive_int,
            "A checkpoint closes after this number of micro-batches, even without a barrier. For 2pc-kafka, at most 50.",
        ),
        Option(
            "retainedCheckpoints",
            100,
            as_positive_int,
            "How many completed checkpoints the journal keeps, so that a rewind can go back to them. Spark's own logs keep "
            "spark.sql.streaming.minBatchesToRetain micro-batches.",
        ),
        Option(
            "tolerableFailedCheckpoints",
            0,
            as_version,
            "How many checkpoints in a row may be declined (because a hook raised an error, or the journal could not be "
            "written) before the query fails. The rows of a declined checkpoint wait for the next checkpoint.",
        ),
        Option(
            "allowNonRestoredState",
            False,
            as_bool,
            "true: the first start after `barrier restore` may drop data of the savepoint that the query no longer uses, such "
            "as the state of a checkpoint hook or the position in a topic. Flink's option -n does the same.",
        ),
        Option(
            "checkpointHooks",
            "",
            as_str,
            "Import paths (package.module:Class, separated by commas) of subclasses of barrier_kafka.CheckpointHook. A hook "
            "saves the state of an external system with each checkpoint.",
        ),
    ),
    passthrough_prefixes=(),
)
"""The options that every sink has: Spark's and the framework's. Pass this `OptionTable` to `OptionTable.parse` as `also`."""
