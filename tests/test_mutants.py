"""The tool that plants bugs finds one that a test sees, misses one that none sees, and refuses a patch that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import main
from tests.mutants.mutant import Mutant, MutantError, planted, read_patches
from tests.mutants.workshop import Workshop

PATCHES = """
## It adds one too many
file: connector/sums.py
found by: tests/test_sums.py
-    return one + other
+    return one + other + 1

## It takes instead of giving; the first of two equal lines
file: connector/sums.py
found by: integration: a test with a broker
 def give(one):
-    return one
+    return -one
"""
CODE = "def add(one, other):\n    return one + other\n\n\ndef give(one):\n    return one\n\n\ndef take(one):\n    return one\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("connector", "tests"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "connector" / "sums.py").write_text(CODE)
    (root / "tests" / "test_sums.py").write_text(
        "from connector.sums import add\n\n\ndef test_sums():\n    assert add(1, 2) == 3\n"
    )
    (root / "tests" / "test_other.py").write_text("def test_other():\n    pass\n")
    (root / "pyproject.toml").touch()
    return root


@pytest.fixture
def patches(tmp_path: Path) -> list[Mutant]:
    path = tmp_path / "sums.patch"
    path.write_text(PATCHES)
    return read_patches(path)


def test_a_bug_is_planted_found_and_taken_out_again(tree: Path, tmp_path: Path, patches: list[Mutant]) -> None:
    shop = Workshop(tree, tmp_path / "shop")
    shop.compile()
    seen, unseen = patches
    assert shop.look_for(seen).test == "tests/test_sums.py::test_sums"
    assert shop.look_for(unseen).test == ""
    assert (shop.root / "connector" / "sums.py").read_text() == CODE
    assert shop.failing(["tests"], 60) == ""


def test_what_a_patch_says_is_read(patches: list[Mutant]) -> None:
    first, second = patches
    assert (first.room, first.file, first.tests) == ("sums", "connector/sums.py", ["tests/test_sums.py"])
    assert (first.is_known, second.is_known, second.is_equivalent, second.tests) == (False, True, False, [])
    assert second.planted_text(CODE) == CODE.replace("    return one\n", "    return -one\n", 1)


@pytest.mark.parametrize("code", [CODE.replace("+", "-"), CODE.replace("def take(one):", "def give(one):")])
def test_a_patch_whose_lines_are_gone_or_stand_there_twice_is_an_error_that_names_it(
    tree: Path, patches: list[Mutant], code: str
) -> None:
    (tree / "connector" / "sums.py").write_text(code)
    stale = patches["give(one):\n    return one\n\n\ndef give" in code]
    with (
        pytest.raises(MutantError, match=rf"stale patch sums: '{stale.breaks}'.*connector/sums\.py"),
        planted(stale, tree),
    ):
        pass
    assert (tree / "connector" / "sums.py").read_text() == code


def test_a_patch_of_a_file_that_is_gone_is_an_error_that_names_it(tree: Path, patches: list[Mutant]) -> None:
    (tree / "connector" / "sums.py").unlink()
    with (
        pytest.raises(MutantError, match=r"stale patch sums: .*there is no connector/sums\.py"),
        planted(patches[0], tree),
    ):
        pass


@pytest.mark.parametrize(
    "lacks", ["file: connector/sums.py", "found by: tests/test_sums.py", "+    return one + other + 1"]
)
def test_a_patch_that_lacks_a_part_is_an_error_that_names_it(tmp_path: Path, lacks: str) -> None:
    path = tmp_path / "sums.patch"
    path.write_text(PATCHES.split("\n\n", maxsplit=1)[0].replace(lacks + "\n", "").replace("\n" + lacks, ""))
    if lacks[0] == "+":  # a bug may also take lines away
        assert read_patches(path)[0].new == ""
        return
    with pytest.raises(MutantError, match="It adds one too many"):
        read_patches(path)


def test_every_planted_bug_fits_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0, capsys.readouterr().err
