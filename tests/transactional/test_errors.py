"""The tree of errors."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from transactional import errors
from transactional.errors import LocationError, OptionError, StoreError, TransactionLostError, TwoPhaseCommitError
from transactional.errors.catalogue import Catalogue

KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_processes(kind: type[TwoPhaseCommitError]) -> None:
    more = {"handles": [{"file": "f"}]} if kind is TransactionLostError else {"option": "topic"}
    error = kind("SOME_CONDITION", "do this", **more)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.condition, again.message, again.parameters) == ("SOME_CONDITION", "do this", more)
    assert str(again) == str(error) == "[SOME_CONDITION] do this"


def test_an_error_has_the_message_and_the_remedy_of_its_condition() -> None:
    error = LocationError("CHECKPOINT_NOT_SETTLED", checkpoint=7, unsettled=[], batches=[3, 4])
    assert str(error) == (
        "[CHECKPOINT_NOT_SETTLED] Checkpoint 7 is not settled yet, so some of its rows may be missing from the output. "
        "Checkpoints that are decided but not settled: none. Micro-batches that are undecided or have to run again: 3, 4. "
        "Start the query: its recovery settles the checkpoint. If the query fails, follow the remedy in its error. Then "
        "repeat the command that failed."
    )
    assert pickle.loads(pickle.dumps(error)).message == error.message


def test_an_error_answers_as_pyspark_s_do() -> None:
    error = LocationError("CHECKPOINT_NOT_SETTLED", checkpoint=7, unsettled=[], batches=[3, 4])
    assert error.getCondition() == "CHECKPOINT_NOT_SETTLED"
    assert error.getMessageParameters() == {"checkpoint": "7", "unsettled": "none", "batches": "3, 4"}
    assert error.getSqlState() == "55000"
    assert StoreError("OF_A_SINK_OF_YOUR_OWN", "it is full").getSqlState() is None


def test_a_condition_that_no_catalogue_has_stands_for_itself() -> None:
    assert str(StoreError("OF_A_SINK_OF_YOUR_OWN")) == "[OF_A_SINK_OF_YOUR_OWN] OF_A_SINK_OF_YOUR_OWN"


def test_a_missing_parameter_leaves_its_name_in_the_message() -> None:
    assert "Checkpoint <checkpoint> is not settled" in str(LocationError("CHECKPOINT_NOT_SETTLED"))


def test_a_full_stop_of_a_parameter_is_not_doubled() -> None:
    error = LocationError("NOTHING_TO_REWIND", reason="the log is empty.")
    assert error.message.startswith("There is nothing to rewind: the log is empty. ")


def test_a_note_stands_after_the_message() -> None:
    error = TransactionLostError("LOST", "gone.", [{"file": "f"}]).with_note("Look at it.")
    assert (type(error), str(error), error.handles) == (
        TransactionLostError,
        "[LOST] gone. Look at it.",
        [{"file": "f"}],
    )


def test_a_package_completes_the_remedies_of_another_and_adds_conditions() -> None:
    core = Catalogue("transactional.errors")
    both = Catalogue("transactional.errors")
    both.extend("connector")
    both.extend("connector")
    assert set(core) < set(both)
    assert "barrier recover" not in core["PREPARED_LOST"].remedy
    assert "`barrier recover LOCATION`" in both["PREPARED_LOST"].remedy
    assert (both["PREPARED_LOST"].message, both["PREPARED_LOST"].package) == (
        core["PREPARED_LOST"].message,
        "transactional.errors",
    )


def test_lost_handles_are_told() -> None:
    assert TransactionLostError("LOST", "gone", [{"file": "f"}], count=1).handles == [{"file": "f"}]


def test_an_option_error_is_a_value_error() -> None:
    assert issubclass(OptionError, ValueError)


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = set(re.findall(r"\w+Error", errors.__doc__ or "")) - {"ValueError"}
    defined = {name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}
    assert drawn == defined == set(errors.__all__)
