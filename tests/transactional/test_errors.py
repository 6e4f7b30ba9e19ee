"""The tree of errors."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from transactional import errors
from transactional.errors import OptionError, TransactionLostError, TwoPhaseCommitError

KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_processes(kind: type[TwoPhaseCommitError]) -> None:
    more = {"handles": [{"file": "f"}]} if kind is TransactionLostError else {"option": "topic"}
    error = kind("SOME_CONDITION", "do this", **more)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.condition, again.message, again.parameters) == ("SOME_CONDITION", "do this", more)
    assert str(again) == str(error) == "[SOME_CONDITION] do this"


def test_lost_handles_are_told() -> None:
    assert TransactionLostError("LOST", "gone", [{"file": "f"}], count=1).handles == [{"file": "f"}]


def test_an_option_error_is_a_value_error() -> None:
    assert issubclass(OptionError, ValueError)


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = set(re.findall(r"\w+Error", errors.__doc__ or "")) - {"ValueError"}
    defined = {name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}
    assert drawn == defined == set(errors.__all__)
