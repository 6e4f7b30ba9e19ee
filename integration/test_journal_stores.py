"""What every store of the journal promises: in memory, on a local disk, on S3, and on what only one driver may use."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

from connector.location import offset_log, webhdfs
from connector.location.location import CheckpointLocation
from connector.location.single_driver import FilesystemFiles
from integration.hdfs import HdfsServer
from integration.journal_racer import race
from integration.object_store import BUCKET, AnswerProxy, ObjectStoreServer
from tests.transactional.bodies import fact_of, lines, run_body
from transactional.entry import EntryKind
from transactional.errors import FencedError, JournalError, LocationError, OptionError
from transactional.journal import Journal, JournalStore, LocalJournalStore, MemoryJournalStore

RACERS = 4
EACH = 8

PLACES = itertools.count()


def somewhere() -> str:
    """A place in the bucket that no other test uses; its names are Hadoop's to the letter."""
    return f"s3a://{BUCKET}/place {next(PLACES)}/a%20b"


def on_a_filesystem(folder: Path) -> CheckpointLocation:
    """What HDFS is served by, on a file system that is here."""
    location = CheckpointLocation("hdfs://nowhere/place", single_driver=True)
    location.files = FilesystemFiles(f"file://{folder}")
    return location


def in_hdfs(hdfs: HdfsServer) -> str:
    """A place that no other test uses; its names are Hadoop's to the letter."""
    return f"{hdfs.url}/place {next(PLACES)}/a%20b#c"


@pytest.fixture(params=["local", "s3", "hdfs", "filesystem"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointLocation:
    if request.param == "filesystem":
        return on_a_filesystem(tmp_path)
    if request.param == "s3":
        request.getfixturevalue("s3")
        return CheckpointLocation(somewhere())
    if request.param == "hdfs":
        return CheckpointLocation(in_hdfs(request.getfixturevalue("hdfs")))
    return CheckpointLocation(str(tmp_path))


def test_every_store_keeps_the_promises_of_its_files(location: CheckpointLocation) -> None:
    files = location.files
    assert (files.names("x"), files.tree("x"), files.exists("x/a"), files.mark("x/a")) == ([], [], False, None)
    files.put("x/a", b"one")
    first = files.mark("x/a")
    files.put("x/y/b", iter([b"two, ", b"more"]))
    assert (files.read("x/a"), b"".join(files.chunks("x/y/b"))) == (b"one", b"two, more")
    assert (sorted(files.names("x")), sorted(files.tree("x"))) == (["a", "y"], ["x/a", "x/y/b"])
    assert sorted(files.tree("")) == ["x/a", "x/y/b"]
    assert files.names("") == ["x"]
    assert files.exists("x/a")
    assert files.exists("x")
    assert (files.create("x/c", b"three"), files.create("x/c", b"four"), files.read("x/c")) == (True, False, b"three")
    files.put("x/a", b"another")
    assert files.mark("x/a") not in (first, None)
    files.delete(["x/a", "x/none"])
    assert sorted(files.tree("x")) == ["x/c", "x/y/b"]
    for missing in (files.read, lambda name: list(files.chunks(name))):
        with pytest.raises(FileNotFoundError):
            missing("x/a")
    files.remove("")
    assert sorted(files.tree("x")) == ["x/c", "x/y/b"], "it is not empty"
    files.remove("x")
    files.remove("x")
    assert files.tree("") == []


@pytest.fixture(params=["memory", "local", "s3", "hdfs", "filesystem"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> JournalStore:
    if request.param == "memory":
        return MemoryJournalStore()
    if request.param == "filesystem":
        return on_a_filesystem(tmp_path).files.journal_store("barrier/log")
    if request.param == "s3":
        request.getfixturevalue("s3")
        return CheckpointLocation(somewhere()).files.journal_store("barrier/log")
    if request.param == "hdfs":
        place = in_hdfs(request.getfixturevalue("hdfs"))
        return CheckpointLocation(place).files.journal_store("barrier/log")
    return LocalJournalStore(str(tmp_path / "log"))


@pytest.fixture
def proxy(s3: ObjectStoreServer) -> Iterator[AnswerProxy]:
    with AnswerProxy(s3) as found:
        yield found


def through(proxy: AnswerProxy) -> CheckpointLocation:
    return CheckpointLocation(somewhere(), {"endpoint": proxy.endpoint})


def append(journal: Journal, driver: str = "d") -> int:
    return race(journal, driver, 1)[0]


# -- each store -----------------------------------------------------------------------------------------------------


def test_a_store_creates_once_reads_lists_and_deletes(store: JournalStore) -> None:
    assert store.names() == []
    with pytest.raises(FileNotFoundError):
        store.read("1.json")
    store.delete("1.json")
    assert store.create("1.json", b"first")
    assert not store.create("1.json", b"second")
    assert store.create("1.snapshot.json", b"folded")
    assert store.read("1.json") == b"first"
    assert sorted(name for name in store.names() if not name.startswith(".")) == ["1.json", "1.snapshot.json"]
    store.delete("1.json")
    store.delete("1.json")
    assert "1.json" not in store.names()


def test_a_journal_folds_deletes_and_refuses_a_create_that_wakes_up_late(store: JournalStore) -> None:
    late = Journal(store)
    late.load()
    assert race(Journal(store), "d", 12, fold=4) == list(range(1, 13))
    names = [name for name in store.names() if not name.startswith(".")]
    assert sorted(names) == sorted(["8.snapshot.json", "12.snapshot.json", *(f"{n}.json" for n in range(9, 13))])
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        late.append(fact_of(EntryKind.RUN, run_body(location="/l")), lambda ledger: None)
    assert Journal(store).load().position == 12


def test_of_threads_that_race_for_every_number_one_gets_each() -> None:
    store = MemoryJournalStore()
    with ThreadPoolExecutor(RACERS) as pool:
        found = list(pool.map(lambda name: race(Journal(store), str(name), EACH), range(RACERS)))
    assert sorted(itertools.chain(*found)) == list(range(1, RACERS * EACH + 1))


@pytest.mark.parametrize("kind", ["local", "s3", "hdfs"])
def test_of_processes_that_race_for_every_number_one_gets_each(
    kind: str, s3: ObjectStoreServer, hdfs: HdfsServer, tmp_path: Path
) -> None:
    place = {"local": str(tmp_path), "s3": somewhere(), "hdfs": in_hdfs(hdfs)}[kind]
    command = [sys.executable, "-m", "integration.journal_racer", place]
    racers = [
        subprocess.Popen(
            [*command, f"driver {number}", str(EACH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(RACERS)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        found = {f"driver {number}": json.loads(racer.communicate()[0]) for number, racer in enumerate(racers)}
    finally:
        for racer in racers:
            racer.kill()
    assert sorted(itertools.chain(*found.values())) == list(range(1, RACERS * EACH + 1))
    ledger = CheckpointLocation(place).journal().load()
    assert ledger.position == RACERS * EACH
    assert all(token in found[run.driver] for token, run in ledger.runs.items())


def test_sparks_logs_are_read_in_every_store(location: CheckpointLocation, tmp_path: Path) -> None:
    files = location.files
    assert offset_log.newest(location, "offsets") == -1
    assert not files.exists("state")
    with pytest.raises(LocationError, match=r"LOGS_INCONSISTENT.*metadata"):
        location.query_id()
    with pytest.raises(LocationError, match=r"LOGS_INCONSISTENT.*offsets"):
        offset_log.source_lines(location, 0)
    put = {"metadata": b'{"id":"q"}', "commits/0": b"v1\n{}", "state/0/0/1.delta": b"state"}
    put.update({f"offsets/{number}": f"v1\n{{}}\nline {number}".encode() for number in (9, 10)})
    put["offsets/.10.crc"] = b"crc"
    for name, data in put.items():
        if location.path.startswith(("s3:", "hdfs://127")):
            assert files.create(name, data)
            continue
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert files.exists("state")
    assert not files.exists("stat")
    assert sorted(files.names("offsets")) == [".10.crc", "10", "9"]
    view = offset_log.spark_view(location)
    assert (view.queryId, view.batch, view.committed, view.oldest) == ("q", 10, 0, 9)
    assert (view.lines, view.previous) == (lines("line 10"), lines("line 9"))
    assert view.location == location.path


# -- an object store --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lose", "fail"])
def test_an_entry_whose_answer_was_lost_is_known_for_ours_and_written_once(proxy: AnswerProxy, how: str) -> None:
    """Lost on the way, or hidden by the client, which sends the put again and is told that the number is taken."""
    journal = through(proxy).journal()
    assert append(journal) == 1
    proxy.spoil = [how]
    assert append(journal) == 2
    assert proxy.spoil == []
    assert append(journal) == 3
    assert journal.load().position == 3


@pytest.mark.parametrize("how", ["lose", "fail"])
def test_a_lost_answer_to_a_put_that_came_second_is_not_taken_for_ours(proxy: AnswerProxy, how: str) -> None:
    location = through(proxy)
    first, second = location.journal(), location.journal()
    second.load()
    append(first, "first")
    proxy.spoil = [how]
    body = run_body(driver="second", location="/l")
    assert second.append(fact_of(EntryKind.RUN, body), lambda ledger: None).number == 2
    assert {token: run.driver for token, run in second.load().runs.items()} == {1: "first", 2: "second"}


def test_a_conflict_in_which_nothing_landed_is_tried_again(proxy: AnswerProxy) -> None:
    journal = through(proxy).journal()
    append(journal)
    proxy.spoil = ["conflict", "conflict"]
    assert append(journal) == 2
    assert proxy.spoil == []


def test_an_entry_is_read_once_by_a_process_and_anew_where_the_place_was_made_anew(proxy: AnswerProxy) -> None:
    location = through(proxy)
    race(location.journal(), "d", 5)
    files = location.files

    def gets() -> list[str]:
        return [name.rpartition("/")[2] for name in proxy.asked if name.startswith("GET") and name.endswith(".json")]

    assert location.journal().load().position == 5
    assert gets() == [], "written by this process"
    for name in files.names("barrier/log"):
        files.delete([f"barrier/log/{name}"])
    assert location.journal().load().position == 0
    other = CheckpointLocation(location.path)  # by the store's own address
    race(other.journal(), "another", 3)
    assert {run.driver for run in location.journal().load().runs.values()} == {"another"}


def test_what_a_planning_reads_in_an_object_store_is_nine_requests(proxy: AnswerProxy) -> None:
    """Spark's logs, and a journal of which the process knows the entries: it is listed, and listed again."""
    location = through(proxy)
    location.files.put("metadata", b'{"id":"q"}')
    for number in range(120):
        location.files.put(f"offsets/{number}", f"v1\n{{}}\nline {number}".encode())
    race(location.journal(), "d", 5)
    proxy.asked.clear()
    offset_log.spark_view(location)
    journal = location.journal()
    journal.load()
    journal.load()
    assert len(proxy.asked) == 9, proxy.asked


def test_a_store_that_is_not_there_is_an_error_that_names_it_and_no_secret(proxy: AnswerProxy) -> None:
    location = through(proxy)
    journal = location.journal()
    append(journal)
    proxy.spoil = ["refuse"] * 50
    with pytest.raises(
        JournalError, match=r"JOURNAL_STORE_FAILED.*could not read or write 2\.json: .*s3://"
    ) as refused:
        append(journal)
    assert "not-a-secret" not in str(refused.value) + repr(refused.value.__cause__)
    proxy.spoil = []
    assert append(journal) == 2
    nowhere = CheckpointLocation(location.path.replace(BUCKET, "another"), {"endpoint": proxy.endpoint})
    with pytest.raises(LocationError, match=r"LOCATION_UNREADABLE.*the bucket does not exist"):
        nowhere.journal().load()


def test_a_store_that_ignores_the_condition_is_refused_before_anything_is_written() -> None:
    with ObjectStoreServer(honest=False) as lax:
        location = CheckpointLocation(somewhere(), {"endpoint": lax.endpoint})
        with pytest.raises(JournalError, match=r"NO_CONDITIONAL_PUT.*If-None-Match"):
            append(location.journal())
        assert [name for name in location.files.names("barrier/log") if name.endswith(".json")] == []


def test_a_listing_of_more_than_a_thousand_is_whole(s3: ObjectStoreServer) -> None:
    store = CheckpointLocation(somewhere()).files.journal_store("barrier/log")
    names = [f"{number}.json" for number in range(1, 1051)]
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda name: store.create(name, b"{}"), names))
    assert sorted(name for name in store.names() if name.endswith(".json")) == sorted(names)


# -- HDFS -----------------------------------------------------------------------------------------------------------


def path_in(hdfs: HdfsServer, location: CheckpointLocation) -> str:
    """A location's path, as a URL has it."""
    return quote(location.path.removeprefix(hdfs.url))


def once(proxy: AnswerProxy, how: str, op: str = "RENAME") -> None:
    """Have this trouble with the next request of this kind."""
    left = [how]
    proxy.trouble = lambda method, path: left.pop() if left and f"op={op}" in path else ""


@pytest.fixture
def front(hdfs: HdfsServer) -> Iterator[AnswerProxy]:
    with AnswerProxy(hdfs.endpoint) as found:
        yield found


@pytest.mark.parametrize("how", ["lose", "fail", "twice", "late", "refuse"])
def test_an_entry_in_hdfs_whose_answer_was_lost_is_known_for_ours_and_written_once(
    hdfs: HdfsServer, front: AnswerProxy, how: str
) -> None:
    journal = CheckpointLocation(in_hdfs(hdfs), {"endpoint": front.endpoint}).journal()
    assert append(journal) == 1
    front.asked.clear()
    once(front, how)
    assert append(journal) == 2
    synced = [each for each in front.asked if "op=MKDIRS" in each]
    assert bool(synced) == (how != "refuse"), "what HDFS shows is made durable before it counts"
    assert append(journal) == 3
    assert journal.load().position == 3


@pytest.mark.parametrize("how", ["lose", "fail", "twice"])
def test_a_lost_answer_of_hdfs_to_the_second_of_two_is_not_taken_for_ours(
    hdfs: HdfsServer, front: AnswerProxy, how: str
) -> None:
    location = CheckpointLocation(in_hdfs(hdfs), {"endpoint": front.endpoint})
    first, second = location.journal(), location.journal()
    second.load()
    append(first, "first")
    once(front, how)
    body = run_body(driver="second", location="/l")
    assert second.append(fact_of(EntryKind.RUN, body), lambda ledger: None).number == 2
    assert {token: run.driver for token, run in second.load().runs.items()} == {1: "first", 2: "second"}


@pytest.mark.parametrize("op", ["CREATE", "RENAME", "DELETE"])
@pytest.mark.parametrize("how", ["lose", "twice", "refuse"])
def test_a_file_in_hdfs_is_replaced_whole_whatever_happens_to_the_answer(
    hdfs: HdfsServer, front: AnswerProxy, how: str, op: str
) -> None:
    files = CheckpointLocation(in_hdfs(hdfs), {"endpoint": front.endpoint}).files
    files.put("x/a", b"one")
    once(front, how, op)
    files.put("x/a", iter([b"two, ", b"more"]))
    assert files.read("x/a") == b"two, more"
    once(front, how, op)
    assert not files.create("x/a", b"three")
    assert files.tree("") == ["x/a"], "no file is left under a temporary name"
    created = [each.partition("?")[0] for each in front.asked if "op=CREATE" in each]
    assert len({*created}) == len(created), "each try writes a file of its own"


def test_a_gateway_that_ignores_how_to_rename_creates_but_does_not_replace(
    hdfs: HdfsServer, front: AnswerProxy
) -> None:
    """As HttpFS does. It answers whether the file was renamed, and never replaces a file."""
    files = CheckpointLocation(in_hdfs(hdfs), {"endpoint": front.endpoint}).files
    front.change = lambda path: path.replace("&renameoptions=NONE", "").replace("&renameoptions=OVERWRITE", "")
    assert (files.create("x/a", b"one"), files.create("x/a", b"two"), files.read("x/a")) == (True, False, b"one")
    with pytest.raises(LocationError, match=r"LOCATION_UNWRITABLE.*x/a.*not renamed"):
        files.put("x/a", b"three")
    assert (files.read("x/a"), files.tree("")) == (b"one", ["x/a"])


def test_an_hdfs_that_refuses_us_is_an_error_that_says_why(hdfs: HdfsServer, front: AnswerProxy) -> None:
    location = CheckpointLocation(in_hdfs(hdfs), {"endpoint": front.endpoint})
    location.files.put("x/a", b"one")
    front.trouble = lambda method, path: "locked"
    with pytest.raises(OptionError, match=r"LOCATION_UNKNOWN_STORE.*requires Kerberos.*singleDriver=true"):
        location.journal().load()
    front.trouble = lambda method, path: "login"
    for change in (lambda: location.files.create("x/b", b"two"), lambda: location.files.delete(["x/a"])):
        with pytest.raises(LocationError, match=r"LOCATION_UNWRITABLE.*HTTP 302"):
            change()
    front.calm()
    hdfs.ask("PUT", path_in(hdfs, location), "SETPERMISSION", permission="700")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HADOOP_USER_NAME", "stranger")
        webhdfs.client.cache_clear()
        with pytest.raises(JournalError, match=r"LOCATION_NOT_OURS"):
            location.files.put("x/b", b"two")
        with pytest.raises(JournalError, match=r"LOCATION_NOT_OURS"):
            location.journal().load()
    webhdfs.client.cache_clear()


def test_a_file_where_hdfs_has_no_folder_is_as_on_a_disk(hdfs: HdfsServer) -> None:
    files = CheckpointLocation(in_hdfs(hdfs)).files
    files.put("x", b"one")
    assert (files.exists("x/y"), files.mark("x/y")) == (False, None)
    with pytest.raises(NotADirectoryError):
        files.names("x")
    inside = CheckpointLocation(files.shown("x")).files
    with pytest.raises(NotADirectoryError):
        inside.remove("")
    assert files.read("x") == b"one"


def test_hdfs_is_asked_directly_whatever_the_proxy_of_the_environment(hdfs: HdfsServer) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("http_proxy", "http://127.0.0.1:1")
        webhdfs.client.cache_clear()
        assert CheckpointLocation(in_hdfs(hdfs)).files.names("") == []
    webhdfs.client.cache_clear()


def test_a_listing_of_more_than_a_thousand_in_hdfs_is_whole(hdfs: HdfsServer) -> None:
    location = CheckpointLocation(in_hdfs(hdfs))
    files = location.files
    files.put("x/0", b"")
    folder = path_in(hdfs, location)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: hdfs.ask("PUT", f"{folder}/x/{number}", "MKDIRS"), range(1, 1101)))
    assert len(files.names("x")) == 1101


# -- what only one driver may use -----------------------------------------------------------------------------------


def test_what_a_killed_create_left_on_a_filesystem_is_deleted_in_time(tmp_path: Path) -> None:
    store = on_a_filesystem(tmp_path).files.journal_store("barrier/log")
    journal = Journal(store)
    race(journal, "d", 1)
    for name in ("1.json", "4.snapshot.json", "12.json"):
        (tmp_path / "barrier" / "log" / f".{name}.{'0' * 32}").write_bytes(b"half")
    race(journal, "d", 11, fold=4)
    assert [name for name in store.names() if name.startswith(".")] == [f".12.json.{'0' * 32}"]


def test_a_store_that_pyarrow_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"LOCATION_UNKNOWN_STORE.*dbfs:"):
        CheckpointLocation("dbfs:/place", single_driver=True).journal().load()
