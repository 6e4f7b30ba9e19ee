"""What mends a failure, told from an error or from the text that Spark makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.results import ROOT
from transactional import errors
from transactional.errors import (
    FencedError,
    JournalError,
    LocationError,
    OptionError,
    QueryStoppedError,
    ReplayMismatchError,
    RetriableError,
    RewindRequiredError,
    StoreError,
    TransactionLostError,
    TwoPhaseCommitError,
)
from transactional.failure import MOST_TEXT, Failure, Remedy, failure_of


@cache
def sources() -> dict[Path, str]:
    """The product's files."""
    return {path: path.read_text() for name in ("connector", "transactional") for path in (ROOT / name).rglob("*.py")}


# As it came from Spark 4.2, shortened in the middle.
SPARK_TEXT = """[STREAM_FAILED] Query [id = 5d1e, runId = 77a0] terminated with exception: \
[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "transactional/settlement.py", line 71, in settle
    states = inspect(handles)
transactional.errors.TransactionLostError: [FILE_LOST] 2 pending files are gone

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "transactional/coordinator.py", line 190, in plan
    self._keep_or_void(run.token, claimed)
transactional.errors.RewindRequiredError: [PREPARED_LOST] prepared transactions of micro-batch 1 are gone. Stop the query
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 5d1e, runId = 77a0]"""


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        (OptionError("UNKNOWN_OPTION", "no"), Remedy.NONE),
        (StoreError("MISSING_RIGHT", "no"), Remedy.NONE),
        (StoreError("AUTHENTICATION_FAILED", "no"), Remedy.NONE),
        (StoreError("BROKERS_UNREACHABLE", "later"), Remedy.RESTART),
        (ReplayMismatchError("REPLAY_DIFFERS", "no"), Remedy.NONE),
        (LocationError("LOCATION_MOVED", "no"), Remedy.NONE),
        (LocationError("LOGS_AHEAD", "back"), Remedy.REWIND),
        (FencedError("REWIND_NOT_DONE", "back"), Remedy.REWIND),
        (RewindRequiredError("PREPARED_LOST", "back"), Remedy.REWIND),
        (FencedError("RUN_SUPERSEDED", "another"), Remedy.NONE),
        (FencedError("RUN_ENDED", "again"), Remedy.RESTART),
        (FencedError("CONCURRENT_COMMIT", "again"), Remedy.RESTART),
        (JournalError("JOURNAL_DAMAGED", "no"), Remedy.NONE),
        (JournalError("JOURNAL_STORE_FAILED", "again"), Remedy.RESTART),
        (RetriableError("HANDLE_NOT_ALIVE", "again"), Remedy.RESTART),
        (TransactionLostError("FILE_LOST", "again", []), Remedy.RESTART),
        (QueryStoppedError("STOP_REQUESTED", "as asked"), Remedy.STOPPED),
        (ValueError("what a user's code raised"), Remedy.RESTART),
    ],
    ids=lambda value: getattr(value, "condition", None) or str(value),
)
def test_an_error_and_its_text_have_one_remedy(problem: Exception, remedy: Remedy) -> None:
    assert failure_of(problem).remedy is remedy
    if isinstance(problem, TwoPhaseCommitError):
        found = failure_of(f"PythonException: ...\n  transactional.errors.{type(problem).__name__}: {problem}\n ...")
        assert (found.condition, found.text, found.remedy) == (problem.condition, str(problem), remedy)


def test_of_several_errors_in_spark_s_text_the_one_that_was_raised_counts() -> None:
    found = failure_of(SPARK_TEXT)
    assert (found.condition, found.remedy) == ("PREPARED_LOST", Remedy.REWIND)
    assert found.text == "[PREPARED_LOST] prepared transactions of micro-batch 1 are gone. Stop the query"


def test_spark_s_own_word_for_logs_that_a_rewind_has_left_behind_asks_for_another() -> None:
    assert failure_of("java.lang.IllegalStateException: batch 3 not found in offset log").remedy is Remedy.REWIND


def test_of_a_python_error_of_somebody_else_its_own_line_is_kept() -> None:
    text = SPARK_TEXT.replace("transactional.errors.RewindRequiredError: [PREPARED_LOST]", "jobs.orders.Wrong:")
    text = text.replace("transactional.errors.TransactionLostError: [FILE_LOST]", "ValueError:")
    assert failure_of(text) == Failure(
        "", "jobs.orders.Wrong: prepared transactions of micro-batch 1 are gone. Stop the query", Remedy.RESTART
    )


def test_an_error_of_somebody_else_is_kept_short() -> None:
    found = failure_of(RuntimeError("x" * 10_000))
    assert (found.condition, len(found.text), found.remedy) == ("", MOST_TEXT, Remedy.RESTART)


def test_every_kind_of_ours_is_known_by_its_name_in_a_text() -> None:
    for name in errors.__all__:
        assert failure_of(f"transactional.errors.{name}: [SOME_CONDITION] so it is").condition == "SOME_CONDITION"


def test_an_error_of_a_class_that_another_package_derives_has_one_remedy_as_an_error_and_in_spark_s_text() -> None:
    for path, text in sources().items():
        if re.search(r"^class \w+Error\(\w+Error\)", text, re.MULTILINE):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    derived = {
        each
        for each in _derived(TwoPhaseCommitError)
        if each.__module__.split(".")[0] in ("connector", "transactional")
    }
    derived -= {getattr(errors, name) for name in errors.__all__}
    assert {kind.__name__ for kind in derived} >= {"MissingRightError", "UndecidedCommitError", "QueryRunsError"}
    for kind in derived:
        for condition in _raised_with(kind):
            problem = kind(condition)
            found = failure_of(f"Traceback (most recent call last):\n{kind.__module__}.{kind.__name__}: {problem}\n")
            assert (found.condition, found.remedy) == (condition, failure_of(problem).remedy)
            assert found.remedy.value == failure_of(TwoPhaseCommitError(condition)).remedy.value


def _derived(kind: type[TwoPhaseCommitError]) -> Iterator[type[TwoPhaseCommitError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _derived(each)


def _raised_with(kind: type[TwoPhaseCommitError]) -> set[str]:
    """Return the conditions with which the product raises a class."""
    found = {each for text in sources().values() for each in re.findall(rf'{kind.__name__}\(\s*"(\w+)"', text)}
    assert found, kind
    return found


def test_a_class_of_a_user_has_the_remedy_of_its_base() -> None:
    class RefusedError(StoreError):
        pass

    assert failure_of(RefusedError("MY_CONDITION", "no")).remedy is Remedy.NONE
    for name, remedy in (("PutBackError", Remedy.NONE), ("StoreUnreachableError", Remedy.RESTART)):
        assert failure_of(f"transactional.errors.{name}: [MY_CONDITION] no").remedy is remedy
