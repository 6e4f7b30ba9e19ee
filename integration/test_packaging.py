"""What is installed is what is in the tree, and PySpark finds the formats in it."""

from __future__ import annotations

import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from connector.formats.table import FORMATS, SINKS
from integration import ROOT
from integration.crash_matrix import CELLS

SHIMS = ROOT / "shims"


def test_every_folder_with_code_is_a_package_which_setuptools_finds() -> None:
    tops = [ROOT / "barrier_kafka", ROOT / "connector", ROOT / "transactional", *SHIMS.iterdir()]
    folders = {file.parent for top in tops for file in top.rglob("*.py")}
    assert len(folders) > len(tops)
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_the_shims_are_found_and_cheap_to_import(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        "from pkgutil import iter_modules\n"
        "modules = [info.name for info in iter_modules() if info.name.startswith('pyspark_')]\n"
        "formats = [import_module(module).DefaultSource for module in modules]\n"
        "print(*sorted(f'{format.name()}={format.__module__.split(chr(46))[0]}' for format in formats))\n"
        "print(*[heavy for heavy in ('confluent_kafka', 'kafka', 'pyarrow', 'pandas', 'deltalake') if heavy in sys.modules])\n"
    )
    # Not from the root of the checkout: there the current folder would help.
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    ours = sorted(f"{each.name}=connector" for each in FORMATS)
    assert run.stdout.split("\n") == [" ".join(ours), "", ""]
    assert len(list(SHIMS.glob("pyspark_*/__init__.py"))) == len(ours)


def test_each_row_of_the_table_names_a_format_of_that_name() -> None:
    assert [each.load().name() for each in FORMATS] == [each.name for each in FORMATS]


def test_the_contract_of_our_sinks_holds_every_sink_but_kafka_s() -> None:
    contract = (
        (ROOT / "pyproject.toml").read_text().partition("Our sinks need no more than the tools that users have")[2]
    )
    held = re.findall(r'"([\w.]+)"', contract.partition("source_modules")[2].partition("]")[0])
    rooms = {".".join(each.path.split(".")[:2]) for each in SINKS} - {"connector.kafka"}
    assert sorted(held) == sorted(rooms)


@pytest.mark.parametrize("sink", [each.name for each in SINKS])
def test_a_sink_is_in_every_place_that_contributing_lists(sink: str) -> None:
    about = [file.name for file in (ROOT / "docs").glob("*.md") if f"`{sink}`" in file.read_text().splitlines()[0]]
    assert len(about) == 1, "a page whose title ends with the format's name"
    assert about[0] in (ROOT / "mkdocs.yml").read_text()
    assert f"]({about[0]})" in (ROOT / "docs" / "index.md").read_text()
    assert {"2pc-mysql": "mariadb"}.get(sink, sink.removeprefix("2pc-")) in {
        cell.sink.partition("-")[0] for cell in CELLS
    }
    if sink != "2pc-multi":  # its handles are those of its sinks
        suites = [file.read_text() for room in ("tests", "integration") for file in (ROOT / room).rglob("test_*.py")]
        assert [each for each in suites if "SinkConformance)" in each and f'"golden" / "{sink}"' in each], (
            "golden handles"
        )
        assert list(ROOT.glob(f"*/golden/{sink}/*.json"))


def test_each_extra_that_an_error_tells_users_to_install_exists() -> None:
    described = ConfigParser()
    described.read(ROOT / "setup.cfg")
    texts = [file.read_text() for file in (ROOT / "connector").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"barrier-kafka\[([\w-]+)\]", text)}
    named |= {each.name.removeprefix("2pc-") for each in SINKS if each.path.startswith("connector.sql")}
    assert named - set(described["options.extras_require"]) == set()


@pytest.mark.parametrize("missing", ["connector.spark.host", "connector", "transactional"])
def test_a_shim_whose_format_cannot_be_imported_raises_only_when_it_is_used(missing: str) -> None:
    program = (
        "import sys\n"
        f"sys.modules['{missing}'] = None\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from pyspark_2pc_kafka import DefaultSource\n"
        "print(DefaultSource.name())\n"
        "try:\n"
        "    DefaultSource({})\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(SHIMS)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    name, message = run.stdout.splitlines()
    assert name == "2pc-kafka"
    assert '"2pc-kafka" is installed but cannot be imported' in message
    assert f"import of {missing} halted" in message or f"No module named '{missing}." in message
