"""Spark's logs, taken back: what is refused, what is deleted, and that a death at any point changes nothing."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from connector.location.location import CheckpointLocation
from connector.location.log_rewind import check_can_go_back, delete_after, plan_ends, replay
from connector.location.offset_log import newest, source_lines, spark_view
from transactional import faults
from transactional.errors import LocationError
from transactional.journal.folders import make_folders

HEAD = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n'
FILE = "0f8fad5b-d9cb-469f-a165-70867728950e"
"""The id in names of temporary files, and of state files of the newer format."""


def offset(batch: int, planned: Sequence[Mapping[str, Any]] | None = None, topic: str = "t0") -> dict[str, Any]:
    """The end of a micro-batch. Keys and partitions stand in the source's order, which is not that of their text."""
    return {
        "barrier": None,
        "interval": 0,
        **({} if planned is None else {"planned": list(planned)}),
        "source": "barrier-kafka",
        "topics": {topic: {"2": batch, "10": 10 * batch}},
        "version": 1,
    }


class Place:
    """A checkpoint location as Spark leaves it, made of nothing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text('{"id":"0"}')

    @property
    def location(self) -> CheckpointLocation:
        return CheckpointLocation(str(self.path))

    def log(self, first: int, last: int, *, committed: int | None = None, sources: int = 1) -> Place:
        """Micro-batches `first` to `last`, committed up to `committed`, with checksums and a leftover of each log."""
        for batch in range(first, last + 1):
            self.offsets(batch, *(offset(batch, topic=f"t{number}") for number in range(sources)))
            if batch <= (last if committed is None else committed):
                self.write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        self.write(f"offsets/.{last + 1}.{FILE}.tmp", "torn")
        self.write(f"commits/.{last}.{FILE}.tmp", "torn")
        return self

    def offsets(self, batch: int, *lines: Mapping[str, Any] | str) -> None:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        self.write(f"offsets/{batch}", HEAD + "\n".join(texts))

    def state(self, *names: str, store: str = "0/0") -> Place:
        for name in names:
            self.write(f"state/{store}/{name}", name)
        return self

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / f".{path.name}.crc").write_text(f"checksum of {text}")

    def files(self, under: str = "") -> dict[str, bytes]:
        root = self.path / under
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def copy(self, folder: Path) -> Place:
        shutil.copytree(self.path, folder)
        return Place(folder)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "checkpoint")


def refusal(call: Callable[..., None], *arguments: Any) -> LocationError:
    with pytest.raises(LocationError) as caught:
        call(*arguments)
    return caught.value


# -- what Spark needs ------------------------------------------------------------------------------------------------


def test_it_can_go_back_to_where_both_offsets_and_the_commit_are_kept(place: Place) -> None:
    place.log(4, 9)
    for batch in (5, 8, 9):
        check_can_go_back(place.location, batch)


@pytest.mark.parametrize("batch", [-1, 0, 3, 4])
def test_what_spark_has_purged_is_refused_and_the_oldest_is_named(place: Place, batch: int) -> None:
    before = place.log(4, 9).files()
    error = refusal(check_can_go_back, place.location, batch)
    assert error.condition == "REWIND_TOO_FAR"
    assert "spark.sql.streaming.minBatchesToRetain" in error.message
    assert "is micro-batch 5" in error.message
    assert (error.parameters["batch"], error.parameters["oldest"]) == (batch, 5)
    assert refusal(delete_after, place.location, batch).condition == "REWIND_TOO_FAR"
    assert place.files() == before


@pytest.mark.parametrize("gone", ["offsets/5", "offsets/6", "commits/6"])
def test_what_is_missing_is_named(place: Place, gone: str) -> None:
    place.log(0, 9)
    (place.path / gone).unlink()
    assert refusal(check_can_go_back, place.location, 6).parameters["missing"] == [gone]


def test_the_newest_needs_no_commit_because_spark_runs_it_again(place: Place) -> None:
    place.log(0, 7, committed=6).state(*(f"{version}.delta" for version in range(1, 8)))
    check_can_go_back(place.location, 7)
    place.log(0, 7, committed=5)
    (place.path / "commits/6").unlink()
    assert refusal(check_can_go_back, place.location, 7).parameters["missing"] == ["commits/6"]


def test_the_beginning_needs_the_offsets_of_micro_batch_0_alone(place: Place) -> None:
    check_can_go_back(place.location, -1)  # nothing ran yet
    delete_after(place.location, -1)
    place.log(0, 3)
    for name in ("offsets/1", "commits/0"):
        (place.path / name).unlink()
    check_can_go_back(place.location, -1)


@pytest.mark.parametrize("batch", [-2, 10])
def test_a_micro_batch_that_never_was_is_refused(place: Place, batch: int) -> None:
    place.log(0, 9)
    assert refusal(check_can_go_back, place.location, batch).condition == "REWIND_TOO_FAR"


def test_where_nothing_is_left_to_go_back_to_the_way_out_is_another_location(place: Place) -> None:
    place.log(5, 5)
    error = refusal(check_can_go_back, place.location, 5)
    assert error.parameters["oldest"] is None
    assert "new checkpoint location" in error.message


DELTAS = tuple(f"{version}.delta" for version in range(1, 11))


@pytest.mark.parametrize(
    ("files", "batches"),
    [
        (DELTAS, range(-1, 10)),
        (DELTAS[4:], [-1]),  # no snapshot to begin at
        (("5.snapshot", *DELTAS[5:]), [-1, *range(4, 10)]),
        (("5.snapshot", *DELTAS[5:8], *DELTAS[9:]), [-1, 4, 5, 6, 7]),  # 9.delta is gone
        (("5.snapshot", "8.snapshot", *DELTAS[5:6], *DELTAS[8:]), [-1, 4, 5, 7, 8, 9]),
        (("3.zip", "6.zip", "9.zip"), [-1, 2, 5, 8]),  # RocksDB without changelog: every version is a snapshot
        (("3.zip", "4.changelog", "5.changelog", "6.zip", "7.changelog"), [-1, 2, 3, 4, 5, 6]),
        ((f"3_{FILE}.zip", f"4_{FILE}.changelog"), [-1, 2, 3]),
        (("3.zip.crc", f".4.zip.{FILE}.tmp"), [-1]),  # no state file among them
    ],
)
def test_the_state_of_the_next_version_must_be_there(
    place: Place, files: Sequence[str], batches: Sequence[int]
) -> None:
    place.log(0, 9).state(*DELTAS, store="0/0").state(*files, store="0/1/left-keyToNumValues")
    place.state("000008.sst", store="0/1/left-keyToNumValues/SSTs").state("schema", store="0/0/_metadata")
    for batch in batches:
        check_can_go_back(place.location, batch)
    for batch in set(range(-1, 10)).difference(batches):
        error = refusal(check_can_go_back, place.location, batch)
        assert error.parameters["missing"] == [f"version {batch + 1} of state/0/1/left-keyToNumValues"]


def test_a_partition_that_lost_all_its_state_is_missed(place: Place) -> None:
    place.log(0, 3).state(*DELTAS).state("schema", store="0/1/_metadata")
    assert refusal(check_can_go_back, place.location, 2).parameters["missing"] == ["version 3 of state/0/1"]


# -- going back ------------------------------------------------------------------------------------------------------


def test_everything_after_the_micro_batch_is_deleted_and_nothing_else(place: Place, tmp_path: Path) -> None:
    place.log(0, 9).state(*DELTAS, "4.snapshot", "8.snapshot", "9.delta.crc", f".11.delta.{FILE}.tmp", "schema")
    place.write("sources/0/9", "a log of a file source")
    place.write("barrier/log/9.json", "ours")
    delete_after(place.location, 6)
    kept = Place(tmp_path / "kept").log(0, 6).state(*DELTAS[:7], "4.snapshot", "schema")
    kept.write("sources/0/9", "a log of a file source")
    kept.write("barrier/log/9.json", "ours")
    for name in ("offsets/.7.", "commits/.6."):  # leftovers that only one of them has
        for path in kept.path.glob(f"{name}*.tmp"):
            path.unlink()
            (path.parent / f".{path.name}.crc").unlink()
    assert place.files() == kept.files()
    delete_after(place.location, 6)
    assert place.files() == kept.files()


def test_state_of_both_formats_goes_with_its_checksums_and_the_shared_files_stay(place: Place) -> None:
    place.log(0, 9).state("4.zip", "5.zip", "5.zip.crc", f"6_{FILE}.changelog", "12.zip").state(
        "8-a.sst", store="0/0/SSTs"
    )
    delete_after(place.location, 3)
    assert sorted(place.files("state")) == ["0/0/.4.zip.crc", "0/0/4.zip", "0/0/SSTs/.8-a.sst.crc", "0/0/SSTs/8-a.sst"]


def test_the_beginning_keeps_the_offsets_of_micro_batch_0(place: Place) -> None:
    place.log(0, 4).state("1.delta", "2.delta", "2.snapshot")
    first = (place.path / "offsets/0").read_bytes()
    delete_after(place.location, -1)
    assert (place.files("offsets"), place.files("commits"), place.files("state")) == (
        {"0": first, ".0.crc": place.files("offsets")[".0.crc"]},
        {},
        {},
    )


# -- running again as before -----------------------------------------------------------------------------------------


def planned(place: Place, batch: int) -> list[Any]:
    return [json.loads(line.text)["planned"] for line in source_lines(place.location, batch)]


def test_planned_ends_stand_in_the_first_micro_batchs_line(place: Place) -> None:
    place.log(2, 9, sources=2)
    replay(place.location, 5, 7)
    ends = [[offset(batch, topic=topic) for batch in (6, 7)] for topic in ("t0", "t1")]
    assert planned(place, 5) == ends
    # As the source's own dict with this key would be written: equal offsets give the same string.
    lines = [json.dumps(offset(5, ends[0], "t0")), json.dumps(offset(5, ends[1], "t1"))]
    assert (place.path / "offsets/5").read_text() == HEAD + "\n".join(lines)
    assert (newest(place.location, "offsets"), newest(place.location, "commits")) == (5, 4)
    assert not (place.path / "offsets/.5.crc").exists()


def test_one_micro_batch_alone_needs_no_plan(place: Place) -> None:
    place.log(2, 9)
    place.offsets(5, '{"logOffset":5}')
    before = (place.path / "offsets/5").read_bytes()
    replay(place.location, 5, 5)
    assert (place.path / "offsets/5").read_bytes() == before
    assert (newest(place.location, "offsets"), newest(place.location, "commits")) == (5, 4)


def test_what_the_last_one_had_planned_comes_after(place: Place) -> None:
    place.log(2, 7)
    rest = [offset(8), offset(9)]
    place.offsets(6, offset(6, [offset(7), *rest]))
    place.offsets(7, offset(7, rest))
    plan_ends(place.location, 5, 7)
    assert planned(place, 5) == [[offset(6), offset(7), *rest]]


def test_a_plan_of_fewer_micro_batches_gives_way(place: Place) -> None:
    place.log(2, 9)
    place.offsets(5, offset(5, [offset(6)]))
    plan_ends(place.location, 5, 8)
    assert planned(place, 5) == [[offset(6), offset(7), offset(8)]]


def test_a_plan_that_is_there_survives_the_ends_that_it_was_made_of(place: Place) -> None:
    place.log(2, 6)
    whole = [offset(batch) for batch in range(6, 10)]
    place.offsets(5, offset(5, whole))
    plan_ends(place.location, 5, 9)
    assert planned(place, 5) == [whole]
    plan_ends(place.location, 5, 6)  # reaches further than asked for
    assert planned(place, 5) == [whole]


@pytest.mark.parametrize(
    "plan",
    [None, [offset(6), offset(7)], [offset(6), offset(0), offset(8), offset(9)]],
    ids=["none", "too short", "contradicts offsets/7"],
)
def test_ends_that_are_recorded_nowhere_are_an_error(place: Place, plan: list[dict[str, Any]] | None) -> None:
    place.log(2, 9)
    place.offsets(5, offset(5, plan))
    for batch in (8, 9):
        (place.path / f"offsets/{batch}").unlink()
    before = place.files()
    error = refusal(replay, place.location, 5, 9)
    assert (error.condition, error.parameters["found"]) == ("PLANNED_ENDS_UNKNOWN", [6, 7])
    assert place.files() == before


def test_another_number_of_sources_is_an_error(place: Place) -> None:
    place.log(2, 9, sources=2)
    place.offsets(7, offset(7))
    assert refusal(replay, place.location, 5, 9).condition == "PLANNED_ENDS_UNKNOWN"


def test_sources_whose_plans_differ_in_length_are_an_error(place: Place) -> None:
    place.log(2, 7, sources=2)
    place.offsets(7, offset(7, [offset(8)]), offset(7))
    assert refusal(replay, place.location, 5, 7).condition == "PLANNED_ENDS_UNKNOWN"


@pytest.mark.parametrize("line", ['{"logOffset":7}', "-"])
@pytest.mark.parametrize("batch", [5, 7])
def test_ends_of_a_source_that_is_not_ours_are_unknown(place: Place, batch: int, line: str) -> None:
    place.log(2, 9)
    place.offsets(batch, offset(batch), line)
    before = place.files()
    error = refusal(replay, place.location, 5, 8)
    assert (error.condition, error.parameters["found"]) == ("PLANNED_ENDS_UNKNOWN", [6, 7, 8])
    assert place.files() == before


def test_what_can_not_run_again_is_refused(place: Place) -> None:
    place.log(4, 9)
    assert refusal(replay, place.location, 4, 9).parameters["missing"] == ["offsets/3", "commits/3"]
    assert refusal(replay, place.location, 10, 10).condition == "REWIND_TOO_FAR"


# -- deaths ----------------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[CheckpointLocation], None]] = {
    "delete_after": lambda location: delete_after(location, 3),
    "replay": lambda location: replay(location, 4, 6),
    "beginning": lambda location: delete_after(location, -1),
}


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process wrote outlives it without fsync, too."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def full(folder: Path) -> Place:
    return Place(folder).log(0, 7, sources=2).state(*DELTAS[:8], "3.snapshot", "7.snapshot", f".8.delta.{FILE}.tmp")


def die_at(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[CheckpointLocation], None], place: Place, point: int
) -> str:
    """Run the step in a process that dies when it passes a fault point, or deletes, the `point`-th time; returns which one."""
    (reader, writer), passed, unlink = os.pipe(), [0], os.unlink

    def deleting(path: str) -> None:
        unlink(path)
        reach("rewind.deleted")

    def reach(name: str) -> None:
        passed[0] += 1
        if passed[0] == point:
            os.write(writer, name.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        patch.setattr(os, "unlink", deleting)
        child = os.fork()
        if child == 0:
            try:
                step(place.location)
                os._exit(0)
            finally:
                os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        name = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (-signal.SIGKILL if name else 0)
    return name


def check_spark_can_read(place: Place, step: str) -> None:
    """The logs are those of a query that stopped between two micro-batches or within one, and no planned end is lost."""
    offsets = {int(name) for name in os.listdir(place.path / "offsets") if name.isdigit()}
    commits = {int(name) for name in os.listdir(place.path / "commits") if name.isdigit()}
    assert offsets == set(range(max(offsets) + 1))
    assert commits in (offsets, offsets - {max(offsets)})
    if len(offsets) < 7:
        first = json.loads(source_lines(place.location, min(4, max(offsets)))[0].text)
        assert first.get("planned") in (None, [offset(5), offset(6)])
        assert "planned" in first or step != "replay"


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.usefixtures("fast")
def test_a_death_at_any_point_and_a_second_run_end_as_one_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, untouched = STEPS[name], full(tmp_path / "untouched")
    undisturbed = untouched.copy(tmp_path / "undisturbed")
    step(undisturbed.location)
    names = []
    for point in range(1, 1000):
        place = untouched.copy(tmp_path / str(point))
        names.append(die_at(monkeypatch, step, place, point))
        check_spark_can_read(place, name)
        if not names[-1]:
            break
        step(place.location)
        assert place.files() == undisturbed.files(), f"after a death at {names[-1]}"
    points = {"rewind.commit-deleted", "rewind.offset-deleted", "rewind.deleted"}
    if name == "replay":
        points.add("rewind.planned")
    assert set(names) == points | {""}
    assert len(names) > 20


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.usefixtures("fast")
def test_a_process_that_dies_at_every_step_comes_to_the_same_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, undisturbed = full(tmp_path / "place"), full(tmp_path / "undisturbed")
    STEPS[name](undisturbed.location)
    deaths = 0
    while die_at(monkeypatch, STEPS[name], place, 3 if deaths < 3 else 1):
        check_spark_can_read(place, name)
        deaths += 1
        assert deaths < 1000
    assert deaths > 20
    assert place.files() == undisturbed.files()


def test_each_step_is_durable_before_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.log(0, 9)
    steps: list[str] = []
    synced = os.fsync

    def sync(descriptor: int) -> None:
        steps.append("fsync")
        synced(descriptor)

    for folder in ("offsets", "commits", "barrier"):
        make_folders(str(place.path / folder))
    monkeypatch.setattr(faults, "reach", steps.append)
    monkeypatch.setattr(os, "fsync", sync)
    replay(place.location, 5, 8)
    assert steps[:5] == ["fsync", "rewind.planned", "fsync", "fsync", "rewind.planned"]
    for before, after in itertools.pairwise(steps[5:]):
        assert "fsync" in (before, after) or before == after, "commits/M is gone for good before offsets/M goes"


def test_a_file_that_another_driver_is_writing_is_not_taken_for_the_micro_batch_at_work(place: Place) -> None:
    place.log(0, 3)
    assert list((place.path / "offsets").glob(".4.*.tmp"))
    view = spark_view(place.location)
    assert (view.batch, view.oldest) == (3, 0)


def test_its_fault_points_are_known() -> None:
    assert set(faults.REWIND_POINTS) > {
        "rewind.planned",
        "rewind.commit-deleted",
        "rewind.offset-deleted",
        "rewind.deleted",
    }


WHOLE = HEAD + json.dumps(offset(3), sort_keys=True)
NAMED = HEAD.replace("v1", "v2") + "alpha:" + json.dumps(offset(3), sort_keys=True)


@pytest.mark.parametrize("whole", [WHOLE, NAMED], ids=["v1", "v2"])
def test_an_offset_file_that_was_cut_anywhere_is_torn_and_not_of_another_version(tmp_path: Path, whole: str) -> None:
    place = Place(tmp_path).log(0, 2)
    for cut in range(len(whole)):
        place.write("offsets/3", whole[:cut])
        with pytest.raises(LocationError, match=r"SPARK_OFFSETS_TORN.*barrier recover"):
            spark_view(place.location)
    place.write("offsets/3", whole)
    assert spark_view(place.location).batch == 3


def test_the_lines_of_version_2_begin_with_names(place: Place) -> None:
    place.write("offsets/0", "v2\n{}\nalpha:" + json.dumps(offset(0)) + '\nbeta:-\ngamma:{"a:b": 7}')
    alpha, beta, gamma = source_lines(place.location, 0)
    assert (alpha.name, alpha.ends) == ("alpha", {"t0": {"2": 0, "10": 0}})
    assert (beta.name, beta.text, beta.offset) == ("beta", "-", None)
    assert (gamma.name, gamma.text) == ("gamma", '{"a:b": 7}')


def test_planned_ends_of_version_2_go_by_name(place: Place) -> None:
    place.log(2, 9)
    for batch in range(2, 10):
        lines = [f"{name}:{json.dumps(offset(batch, topic=name))}" for name in ("alpha", "beta")]
        lines = lines if batch % 2 else lines[::-1]
        place.write(f"offsets/{batch}", "\n".join(["v2", "{}", *lines]))
    replay(place.location, 5, 7)
    ends = {line.name: json.loads(line.text)["planned"] for line in source_lines(place.location, 5)}
    assert ends == {name: [offset(batch, topic=name) for batch in (6, 7)] for name in ("alpha", "beta")}
    assert (place.path / "offsets/5").read_text().startswith("v2\n{}\nalpha:{")
    place.write("offsets/4", (place.path / "offsets/4").read_text().replace("beta:", "gamma:"))
    assert "PLANNED_ENDS_UNKNOWN" in str(refusal(plan_ends, place.location, 4, 5))


def test_no_offsets_at_all_are_named(tmp_path: Path) -> None:
    with pytest.raises(LocationError, match=r"LOGS_INCONSISTENT.*offsets contains no micro-batch"):
        spark_view(Place(tmp_path).location)
