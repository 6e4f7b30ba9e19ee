"""The claims of the documents name their tests in one appendix, at the end of `docs/proof.md`; the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.proof_page import PAGE, claims, proof_page
from tests.results import ROOT

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MAY_NAME_TESTS = {"proof.md", "api.md", "CONTRIBUTING.md"}
"""The appendix, the table of the conformance kit, and the page for those who write tests."""


@pytest.fixture(scope="module")
def names() -> frozenset[str]:
    """Return the names of all tests that pytest collects, and of their files, with and without the path."""
    files = [file for folder in ("tests", "integration") for file in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "transactional" / "testing").glob("*.py")  # the contract of sinks, which subclasses bring in
    collected = [file for file in files if file.stem.startswith("test_") or file.parent.name == "testing"]
    texts = [file.read_text(encoding="utf-8") for file in collected]
    defined = {name for text in texts for name in re.findall(r"^(?: {4})?def (test_\w+)", text, re.MULTILINE)}
    paths = {file.relative_to(ROOT).as_posix() for file in files}
    return frozenset(defined | paths | {file.stem for file in files})


@pytest.mark.parametrize("page", claims())
def test_every_claim_is_of_a_page_that_exists_and_names_tests_that_exist(page: str, names: frozenset[str]) -> None:
    assert (ROOT / page).exists()
    for claim, tests in claims()[page].items():
        assert tests, claim
        assert set(tests) <= names, claim
        assert claim.endswith("."), claim


def test_the_proof_and_its_appendix_are_made_of_the_claims_and_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == proof_page(), "run: python -m tests.proof_page"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_tests_are_named_in_the_appendix_and_not_in_the_prose(document: Path, names: frozenset[str]) -> None:
    named = set(re.findall(r"\btest_\w+", document.read_text(encoding="utf-8")))
    assert named <= (names if document.name in MAY_NAME_TESTS else frozenset())
