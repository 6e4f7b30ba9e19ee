"""Every condition that this project raises is in the catalogue, with its remedy; the docs' page is the catalogue's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import connector
import transactional.errors
from tests.error_page import ERROR_PAGE, error_page
from tests.results import ROOT
from tests.words import WORDS
from transactional.errors.catalogue import ACTIONS, Catalogue, catalogue
from transactional.failure import Remedy, failure_of

CONDITION = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
CORE = Catalogue("transactional.errors")
PRODUCT = ("barrier_kafka", "connector", "transactional")

ENGINE = re.compile(r"spark|kafka|barrier (run|recover|rewind|resolve|stop|restore)|(?<![\w-])--[a-z]", re.IGNORECASE)
"""What only a room above the core knows: engines, stores, commands."""

NAMED = {"barrier-kafka", "pyarrow.RecordBatch"}
"""Texts of the core that are data: a source in the offset log."""


def kinds() -> dict[str, ast.ClassDef]:
    """Return the subclasses outside of the tree in `transactional.errors`, by which callers tell conditions apart."""
    paths = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    modules = [ast.parse(path.read_text()) for path in paths if path != Path(transactional.errors.__file__)]
    classes = [each for module in modules for each in ast.walk(module) if isinstance(each, ast.ClassDef)]
    return {each.name: each for each in classes if {*map(name_of, each.bases)} & set(transactional.errors.__all__)}


class Raise(NamedTuple):
    place: str
    condition: str
    has_text: bool
    parameters: frozenset[str] | None
    """None if there is a mapping among them."""


def raises() -> Iterator[Raise]:
    """All errors that are made anywhere."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ast.parse(path.read_text())
            for call in ast.walk(module):
                if not isinstance(call, ast.Call) or name_of(call.func) not in {*transactional.errors.__all__, *KINDS}:
                    continue
                assert call.args, f"{path.relative_to(ROOT)}:{call.lineno}: without a condition"
                first = call.args[0]
                if isinstance(first, ast.Attribute) and first.attr == "condition":
                    continue  # another's, passed on
                place = f"{path.relative_to(ROOT)}:{call.lineno}"
                found = conditions_in(first) or conditions_of(module, first)
                assert found, f"{place}: which condition is it?"
                names = {keyword.arg for keyword in call.keywords}
                parameters = None if None in names else frozenset(name for name in names if name is not None)
                yield from (Raise(place, condition, len(call.args) > 1, parameters) for condition in sorted(found))


def name_of(node: ast.expr) -> str:
    """Return the last name of ``StoreError`` and ``errors.StoreError``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def conditions_in(node: ast.AST) -> set[str]:
    texts = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {text for text in texts if CONDITION.fullmatch(text)}


def conditions_of(module: ast.Module, name: ast.expr) -> set[str]:
    """What is assigned to a variable, or stands in a table."""
    names = {each.id for each in ast.walk(name) if isinstance(each, ast.Name)}
    found: set[str] = set()
    for each in ast.walk(module):
        if isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if names & {target.id for target in targets if isinstance(target, ast.Name)}:
                found |= conditions_in(each.value)
    return found


KINDS = kinds()
RAISES = list(raises())


def test_the_catalogue_has_every_condition_that_is_raised_and_no_other() -> None:
    assert {each.condition for each in RAISES} == set(catalogue)


def test_the_core_raises_only_conditions_of_its_own() -> None:
    assert {each.condition for each in RAISES if each.place.startswith("transactional/")} <= set(CORE)


def test_product_code_leaves_every_text_to_the_catalogue() -> None:
    """Only the sinks and hooks of users pass texts, of conditions of their own."""
    assert [each for each in RAISES if each.has_text] == []


def test_a_kind_outside_the_tree_only_names_conditions() -> None:
    """Whatever else an error says, its condition and its parameters say it."""
    assert KINDS
    for kind in KINDS.values():
        assert len(kind.bases) == 1
        assert [type(each) for each in kind.body] == [ast.Expr], f"{kind.name} is more than a name and a docstring"


@pytest.mark.parametrize("package", ["connector", "transactional/errors"])
def test_no_condition_is_there_twice(package: str) -> None:
    """The later one would silently be the one that counts."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), names
        return dict(pairs)

    json.loads((ROOT / package / "conditions.json").read_text(), object_pairs_hook=once)


def test_every_raise_gives_all_that_the_templates_name() -> None:
    for each in RAISES:
        if each.parameters is not None:
            assert catalogue[each.condition].placeholders <= each.parameters, each


def test_the_conditions_stay_few_enough_to_be_known() -> None:
    assert len(catalogue) < 140


@pytest.mark.parametrize("condition", sorted(catalogue))
def test_a_condition_is_whole(condition: str) -> None:
    found = catalogue[condition]
    assert CONDITION.fullmatch(found.name)
    assert re.fullmatch(r"[0-9A-Z]{5}", found.sql_state)
    assert found.action in ACTIONS
    for text in (found.message, found.remedy):
        assert re.match(
            r"[A-Z<`]|\(1\) [A-Z]|2pc-|barrierInterval |barrier-|kafka\.|accept-|offsets/|commits/|txnVersion|--", text
        ), text
        assert text.endswith((".", ">")), text
        assert not WORDS.search(text), text


@pytest.mark.parametrize("condition", sorted(CORE))
def test_the_core_names_no_command_no_engine_and_no_store(condition: str) -> None:
    assert not ENGINE.search(CORE[condition].message + CORE[condition].remedy)


def test_nor_do_other_texts_of_the_core() -> None:
    for path in sorted((ROOT / "transactional").rglob("*.py")):
        if "testing" in path.parts:
            continue
        module = ast.parse(path.read_text())
        documents = {
            id(each.value)
            for each in ast.walk(module)
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        }
        for each in ast.walk(module):
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in documents:
                assert each.value in NAMED or not ENGINE.search(each.value), f"{path}:{each.lineno}"


def test_what_the_connector_completes_is_a_remedy_of_the_core() -> None:
    completed = {name for name in CORE if catalogue[name].remedy != CORE[name].remedy}
    assert {name for name in completed if "`barrier " in catalogue[name].remedy} >= {
        "LOCATION_MOVED",
        "NO_JOURNAL",
        "OUTCOME_UNKNOWN",
        "PREPARED_LOST",
        "REWIND_NOT_DONE",
    }
    assert all(catalogue[name].message == CORE[name].message for name in CORE)
    assert connector.__name__ in {found.package for found in catalogue.values()}


def test_the_action_of_a_condition_is_read_from_an_error_s_text() -> None:
    actions = dict(zip(ACTIONS, (Remedy.RESTART, Remedy.REWIND, Remedy.NONE, Remedy.STOPPED), strict=True))
    for name, found in catalogue.items():
        assert failure_of(f"transactional.errors.StoreError: [{name}] so it is").remedy is actions[found.action]


def test_the_page_of_the_docs_is_the_catalogue() -> None:
    assert ERROR_PAGE.read_text() == error_page(), "run: python -m tests.error_page"
