"""Where a checkpoint location is."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import pytest
import requests

from connector.location.files import GuardedFiles
from connector.location.hdfs import HdfsFiles, endpoints_of
from connector.location.location import SINGLE_DRIVER, CheckpointLocation, local_path
from connector.location.offset_log import spark_view
from connector.location.state_files import shuffle_partitions
from tests.connector.cli_place import CliPlace
from transactional.errors import LocationError, OptionError, TwoPhaseCommitError
from transactional.failure import Remedy, failure_of


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/a%20b#1?x", "/data/a%20b#1?x"),  # Hadoop's Path decodes nothing
        ("file:/data/loc;v=1/x", "/data/loc;v=1/x"),
        ("file:///data/a%20b", "/data/a%20b"),
        ("file:///data/loc#1", "/data/loc#1"),
        ("file://localhost/data", "/data"),
        ("file://host/data", None),
        ("s3://bucket/data", None),
        ("relative/path:1", "relative/path:1"),
    ],
)
def test_a_location_is_read_as_hadoop_reads_it(text: str, path: str | None) -> None:
    assert local_path(text) == path


@pytest.mark.parametrize("location", ["viewfs://host/data", "dbfs:/data", "wasbs://a@b/data", "file://host/data"])
def test_a_location_without_exclusive_create_is_refused_unless_somebody_else_guarantees_one_driver(
    location: str,
) -> None:
    with pytest.raises(OptionError, match=r"NO_EXCLUSIVE_CREATE.*singleDriver=true"):
        CheckpointLocation(location)
    with pytest.raises(OptionError, match="NO_EXCLUSIVE_CREATE"):
        CheckpointLocation.from_options({"checkpointLocation": location, "singledriver": "false"})
    assert CheckpointLocation.from_options({"checkpointLocation": location, "singledriver": "true"}).path == location


def test_a_command_is_told_of_the_one_driver_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SINGLE_DRIVER, "true")
    assert CheckpointLocation("hdfs://host/data/").path == "hdfs://host/data"


def test_a_local_location_has_one_canonical_path() -> None:
    assert CheckpointLocation("file:/data//loc/").path == "/data/loc"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("s3a://bucket/a//b/", "s3://bucket/a/b"),
        ("s3://bucket/a%20b c#1", "s3://bucket/a%20b c#1"),  # Hadoop's Path decodes nothing
        ("S3N://bucket", "s3://bucket"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("abfs://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
    ],
)
def test_all_names_of_a_place_in_an_object_store_are_one(location: str, path: str) -> None:
    found = CheckpointLocation.from_options({"checkpointLocation": location, "checkpointRegion": "eu-west-1"})
    assert found.path == path
    assert pickle.loads(pickle.dumps(found)).path == path


@pytest.mark.parametrize(
    ("location", "path", "endpoints"),
    [
        ("hdfs://host:8020/a//b c%20/", "hdfs://host:8020/a/b c%20", ("http://host:9870",)),
        ("webhdfs://host:50070/a", "webhdfs://host:50070/a", ("http://host:50070",)),
        ("SWEBHDFS://host:9871/a", "swebhdfs://host:9871/a", ("https://host:9871",)),
    ],
)
def test_all_names_of_a_place_in_hdfs_are_one(location: str, path: str, endpoints: tuple[str, ...]) -> None:
    assert CheckpointLocation(location).path == path
    assert endpoints_of(path, None) == endpoints


@pytest.mark.parametrize("way", ["option", "environment"])
def test_the_namenodes_of_a_nameservice_have_to_be_named(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = "http://nn1:9870/,https://nn2:9871"
    options = {"checkpointLocation": "hdfs://cluster/data"}
    with pytest.raises(
        OptionError, match=r"INVALID_OPTION.*checkpointEndpoint.*http://namenode1:9870,.*BARRIER_WEBHDFS"
    ):
        CheckpointLocation.from_options(options)
    if way == "environment":
        monkeypatch.setenv("BARRIER_WEBHDFS", f"other=http://a:9870 cluster={given}")
    else:
        options["checkpointEndpoint"] = given
    found = CheckpointLocation.from_options(options)
    files = found.files
    assert isinstance(files, GuardedFiles)
    assert isinstance(files.inner, HdfsFiles)
    assert files.inner.endpoints == ("http://nn1:9870", "https://nn2:9871")
    assert pickle.loads(pickle.dumps(found)).path == "hdfs://cluster/data"


def test_addresses_of_another_cluster_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARRIER_WEBHDFS", "cluster=http://nn1:9870")
    assert endpoints_of("webhdfs://host:9870/a", None) == ("http://host:9870",)
    assert endpoints_of("hdfs://host:8020/a", None) == ("http://host:9870",)
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*checkpointEndpoint"):
        endpoints_of("hdfs://other/a", None)


def test_what_ends_too_early_is_not_a_whole_file_of_hdfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of urllib3 before 2 do not notice."""
    with pytest.raises(OSError, match="ended after 4 of 8 bytes"):
        read_answer(monkeypatch, b"half", {"Content-Length": "8"})


def test_a_file_of_hdfs_is_read_from_a_gateway_that_sends_it_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HttpFS does; the end of the last chunk shows that the file is whole."""
    assert read_answer(monkeypatch, b"whole", {"Transfer-Encoding": "chunked"}) == b"whole"
    with pytest.raises(OSError, match="does not contain the file's length"):
        read_answer(monkeypatch, b"half", {})


def read_answer(monkeypatch: pytest.MonkeyPatch, content: bytes, headers: dict[str, str]) -> bytes:
    """Read a file of HDFS; the server's answer is given."""
    answer = requests.Response()
    answer.status_code, answer.raw = 200, io.BytesIO(content)
    answer.headers.update(headers)
    monkeypatch.setattr(requests.Session, "request", lambda *_, **__: answer)
    return HdfsFiles("hdfs://host:8020/a", ("http://host:9870",)).read("b")


@pytest.mark.parametrize(
    "text", ["namenode:9870", "http://user:secret@host:9870", "http://host:9870/webhdfs/v1", "http://a;b", ","]
)
def test_addresses_of_webhdfs_are_checked(text: str) -> None:
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*checkpointEndpoint"):
        CheckpointLocation("hdfs://cluster/data", {"endpoint": text})


@pytest.mark.parametrize(
    "location",
    ["hdfs:/data", "hdfs:///data", "hdfs://host:8020/", "hdfs://host:8020/a/../b", "hdfs://user:secret@host:8020/a"],
)
def test_a_place_in_hdfs_is_a_folder_of_a_namenode(location: str) -> None:
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*checkpointLocation.*hdfs://namenode:8020/folder"):
        CheckpointLocation(location)


@pytest.mark.parametrize("file", ["metadata", "offsets/0", "offsets/1"])
def test_a_file_of_spark_s_that_can_t_be_read_now_is_read_again_by_a_restart(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = CliPlace(tmp_path)
    place.run()
    for batch in range(2):
        place.decided(batch)
    location = CheckpointLocation(str(place))
    read = location.files.read

    def away(name: str) -> bytes:
        if name == file:
            raise OSError(5, "Input/output error", name)
        return read(name)

    monkeypatch.setattr(location.files, "read", away)
    with pytest.raises(LocationError, match=f"LOCATION_UNREADABLE.*{file}") as problem:
        spark_view(location)
    assert failure_of(problem.value).remedy is Remedy.RESTART
    if file != "metadata":
        with pytest.raises(LocationError, match="LOCATION_UNREADABLE"):  # not: Spark keeps no number of partitions
            shuffle_partitions(location, int(file[-1]))


def test_a_file_of_spark_s_that_is_gone_is_no_matter_of_a_restart(tmp_path: Path) -> None:
    location = CheckpointLocation(str(tmp_path))
    with pytest.raises(LocationError, match="LOGS_INCONSISTENT") as problem:
        location.query_id()
    assert failure_of(problem.value).remedy is Remedy.NONE


def test_a_disk_that_does_not_say_whether_a_file_is_there_is_not_taken_for_one_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = CheckpointLocation(str(tmp_path)).files
    assert not files.exists("offsets/1")

    def away(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "stat", away)
    with pytest.raises(LocationError, match=r"LOCATION_UNREADABLE.*offsets/1.*Input/output"):
        files.exists("offsets/1")


@pytest.mark.parametrize(
    ("problem", "condition", "remedy"),
    [
        (OSError("HDFS connection failed: namenode is in safe mode"), "LOCATION_UNREADABLE", Remedy.RESTART),
        (OSError("Unable to load libhdfs: no such file"), "LOCATION_UNKNOWN_STORE", Remedy.NONE),
        (ValueError("Unrecognized filesystem type in URI: hdfs://host/data"), "LOCATION_UNKNOWN_STORE", Remedy.NONE),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_store_that_is_away_is_told_from_one_that_is_not_known(
    problem: Exception, condition: str, remedy: Remedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away:
        @staticmethod
        def from_uri(_: str) -> None:
            raise problem

    monkeypatch.setattr("pyarrow.fs.FileSystem", Away)
    location = CheckpointLocation("hdfs://host/data", single_driver=True)
    with pytest.raises(TwoPhaseCommitError) as found:
        location.query_id()
    assert (found.value.condition, failure_of(found.value).remedy) == (condition, remedy)


@pytest.mark.parametrize("location", ["s3a:///a", "s3a:bucket", "s3a://bucket/../a", "abfss://account/a"])
def test_a_location_that_names_no_folder_of_an_object_store_is_refused(location: str) -> None:
    with pytest.raises(OptionError, match="INVALID_OPTION"):
        CheckpointLocation(location)


def test_an_offset_log_of_another_version_names_the_setting_that_chose_it(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"q"}')
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v3\n{}\n{"0":"{}"}')
    with pytest.raises(
        LocationError, match=r"SPARK_OFFSETS_UNKNOWN.*'v3'.*v1 and v2.*spark\.sql\.streaming\.offsetLog\.formatVersion"
    ):
        spark_view(CheckpointLocation(str(tmp_path)))
