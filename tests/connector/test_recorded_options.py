"""What a checkpoint location can make a command import, call or connect to: nothing, without the operator's word."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from connector.formats.discovery import ALLOW, find_sink
from connector.location.location import CheckpointLocation
from connector.spark.recorded_options import confirmed_options, leads_out
from connector.spark.recorded_sink import fitting, missing_secrets, recorded_host, recorded_run, recorded_sink
from integration.file_sink import FileSink
from tests.connector.cli_place import SCHEMA, CliPlace, another_user, answer, dead_process, shared_folder, two_users
from transactional.errors import OptionError

Capture = pytest.CaptureFixture[str]

TRAP = """
from pathlib import Path
from integration.file_sink import FileSink
from transactional.hooks import CheckpointHook

Path(__file__).with_name("imported").touch()

def trap(*anything):
    Path(__file__).with_name("called").touch()
    return "token", 2e9

class Hook(CheckpointHook):
    def trigger(self, context):
        Path(__file__).with_name("triggered").touch()
    def restore(self, checkpoint, state):
        pass

class Sink(FileSink):
    @classmethod
    def name(cls):
        return "somebody's"
"""

BYTES = StructType([StructField("value", BinaryType())])
SECRET = "kafka.sasl.password=hunter2"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a module of a name of its own, which leaves a mark when it is imported."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"trap_{tmp_path.name}.py").write_text(TRAP)
    monkeypatch.syspath_prepend(folder)
    return folder


def module(trap: Path) -> str:
    return next(trap.glob("*.py")).stem


def marks(trap: Path) -> list[str]:
    return sorted(path.name for path in trap.iterdir() if path.suffix == "" and path.name != "__pycache__")


KINDS = {FileSink.name(): "integration.file_sink:FileSink", "2pc-kafka": "connector.kafka.sink.kafka_sink:KafkaSink"}


def prepared(folder: Path, sink: str = FileSink.name(), schema: Any = None, kind: str = "", **options: str) -> CliPlace:
    """A query whose driver is gone, with one micro-batch prepared."""
    place = CliPlace(folder)
    options = {"path": str(place.output), "checkpointlocation": str(place), **options}
    setup: dict[str, Any] = {
        "class": kind or KINDS.get(sink, "x:Y"),
        "options": options,
        "schema": schema or SCHEMA.jsonValue(),
        "hidden": [],
    }
    place.run(sink=sink, setup=setup, process=dead_process())
    place.prepared(0)
    return place


def user_defined(trap: Path) -> dict[str, Any]:
    kind = {"type": "udt", "pyClass": f"{module(trap)}.Missing", "sqlType": "long"}
    return {"type": "struct", "fields": [{"name": "value", "type": kind, "nullable": True, "metadata": {}}]}


@pytest.mark.parametrize("command", ["stop", "rewind"])
@pytest.mark.parametrize("what", ["sink", "hook", "provider", "schema"])
def test_a_journal_s_word_imports_and_calls_nothing(
    tmp_path: Path, trap: Path, capsys: Capture, what: str, command: str
) -> None:
    named = f"{module(trap)}:trap"
    match what:
        case "sink":
            place = prepared(tmp_path, "another", kind=named)
        case "hook":
            place = prepared(tmp_path, checkpointhooks=named)
        case "provider":
            login = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.sasl.oauthbearer.token.provider": named}
            login |= {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "OAUTHBEARER"}
            place = prepared(tmp_path, "2pc-kafka", topic="t", **login)
        case _:
            place = prepared(tmp_path, schema=user_defined(trap))
    status, document, _ = answer(
        capsys, command, str(place), *(["--to", "1", "--dry-run"] if command == "rewind" else [])
    )
    assert marks(trap) == []
    harmless = what == "schema" or (what, command) == ("hook", "rewind")  # which calls no hook
    if not harmless:
        assert (status, document["condition"]) == (1, "UNKNOWN_SINK" if what == "sink" else "NOT_CONFIRMED")
        assert named in document["message"]
        assert ALLOW in document["message"]
        assert place.files("pending") == [0]
    elif command == "stop":
        assert (status, place.files("committed")) == (0, [0])


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_hook_that_the_operator_names_is_looked_at_before_it_is_called(
    tmp_path: Path, trap: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    place = prepared(tmp_path, checkpointhooks=f"{module(trap)}:trap")
    given = ["--option", f"checkpointHooks={module(trap)}:trap"] if how == "option" else []
    monkeypatch.setenv(ALLOW, f"{module(trap)}:trap")
    status, document, _ = answer(capsys, "stop", str(place), *given)
    assert (status, document["condition"]) == (1, "INVALID_OPTION")
    assert "not a subclass of CheckpointHook" in document["message"]
    assert marks(trap) == ["imported"]
    assert place.files("pending") == [0]


def test_a_hook_and_a_sink_that_the_operator_allows_are_used(
    tmp_path: Path, trap: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = prepared(tmp_path, "somebody's", kind=f"{module(trap)}:Sink", checkpointhooks=f"{module(trap)}:Hook")
    monkeypatch.setenv(ALLOW, f"{module(trap)}:Sink, {module(trap)}:Hook")
    assert answer(capsys, "stop", str(place))[0] == 0
    assert marks(trap) == ["imported", "triggered"]
    assert place.files("committed") == [0]


def test_a_sink_of_an_installed_package_is_found_by_its_format_s_name(trap: Path, tmp_path: Path) -> None:
    package = trap / "somebody-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    entry = f"[barrier_kafka.sinks]\nsomebody's = {module(trap)}:Sink\nbad = {module(trap)}:trap\n"
    (package / "entry_points.txt").write_text(entry)
    place = prepared(tmp_path, "somebody's")
    found = recorded_sink(recorded_run(place.ledger()), CheckpointLocation(str(place)), {})
    assert type(found).__name__ == "Sink"
    with pytest.raises(OptionError, match=r"UNKNOWN_SINK.*not a subclass"):
        find_sink("bad")


@pytest.mark.parametrize(("name", "kind"), [("2pc-kafka", "KafkaSink"), ("2pc-delta", "DeltaSink")])
def test_our_sinks_are_found_whatever_path_a_journal_has_for_them(name: str, kind: str) -> None:
    assert find_sink(name, "an.old.module:Name").__name__ == kind


def test_passwords_go_to_no_broker_that_only_the_journal_names(tmp_path: Path, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        theirs.setblocking(False)
        address = f"127.0.0.1:{theirs.getsockname()[1]}"
        login = {"kafka.bootstrap.servers": address, "kafka.security.protocol": "SASL_PLAINTEXT"}
        login |= {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "u"}
        place = prepared(tmp_path, "2pc-kafka", BYTES.jsonValue(), topic="t", **login)
        file = tmp_path / "options"
        file.write_text(f"{SECRET}\n")
        status, document, said = answer(capsys, "stop", str(place), "--options-file", str(file))
        assert (status, document["condition"]) == (1, "NOT_CONFIRMED")
        assert all(f"{key}={value}" in document["message"] for key, value in login.items())
        assert "hunter2" not in str(document) + said
        with pytest.raises(BlockingIOError):
            theirs.accept()


BROKERS = {"kafka.bootstrap.servers": "b:1", "kafka.linger.ms": "5", "topic": "t", "checkpointlocation": "/l"}
STORE = {"path": "s3://b/t", "storage.aws_region": "eu-1"}


@pytest.mark.parametrize(
    ("recorded", "given", "refused"),
    [
        (BROKERS, {}, None),
        (BROKERS, {"kafka.linger.ms": "6"}, None),
        (BROKERS, {"kafka.sasl.password": "x"}, ["kafka.bootstrap.servers"]),
        (BROKERS, {"kafka.sasl.password": "x", "Kafka.Bootstrap.Servers": "other:1"}, None),
        ({"kafka.ssl.ca.location": "/ca"}, {"kafka.sasl.password": "x"}, ["kafka.ssl.ca.location"]),
        ({"db.host": "h", "db.table": "t"}, {"db.password": "x"}, ["db.host"]),
        ({"db": "jdbc:x://h/d"}, {"db.password": "x"}, ["db"]),
        (BROKERS, {"kafka.sasl.oauthbearer.token.provider": "m:f"}, ["kafka.bootstrap.servers"]),
        (STORE, {}, None),
        (STORE, {"storage.azure_storage_sas_key": "x"}, ["path"]),
        # its client takes credentials of the environment
        ({**STORE, "storage.aws_endpoint_url": "http://h"}, {}, ["storage.aws_endpoint_url"]),
        ({**STORE, "storage.aws_endpoint_url": "http://h"}, {"storage.aws_endpoint_url": "http://h"}, None),
        ({"storage.aws_region": "evil.example/"}, {}, ["storage.aws_region"]),
    ],
)
def test_an_address_is_used_with_secrets_only_if_the_operator_has_said_it(
    recorded: dict[str, str], given: dict[str, str], refused: list[str] | None
) -> None:
    if refused is None:
        said = {key.lower() for key in given}
        expected = {key: value for key, value in recorded.items() if key not in (*said, "checkpointlocation")}
        assert confirmed_options(recorded, given) == expected
        return
    with pytest.raises(OptionError, match="NOT_CONFIRMED") as found:
        confirmed_options(recorded, given)
    assert found.value.parameters["options"] == refused
    assert f"{refused[0]}={recorded[refused[0]]}" in found.value.message


def test_an_address_that_was_given_is_used_and_the_journal_s_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    given = {"kafka.bootstrap.servers": "ours:1", "kafka.sasl.password": "x", "kafka.linger.ms": "6"}
    assert "kafka.bootstrap.servers" not in confirmed_options(BROKERS, given)
    assert caplog.messages == [
        "the journal has kafka.bootstrap.servers=b:1, but the value that you passed is used: ours:1"
    ]


def test_secrets_that_a_journal_holds_are_not_used() -> None:
    old = {"kafka.sasl.password": "theirs", "storage.azure_storage_account_key": "k", "storage.proxy_url": "http://h"}
    assert confirmed_options({**old, "path": "/t"}, {}) == {"path": "/t"}


def test_secrets_that_an_earlier_release_has_recorded_are_missed_by_name(tmp_path: Path) -> None:
    run = recorded_run(prepared(tmp_path).ledger())
    run.setup.update(options={"Storage.Azure_Storage_Account_Key": "k", "path": "/t"}, hidden=["db.password"])
    assert missing_secrets(run, {}) == ["db.password", "storage.azure_storage_account_key"]
    assert missing_secrets(run, {"storage.azure_storage_account_key": "k", "db.password": "p"}) == []


def test_how_a_location_is_reached_says_who_has_opened_it(tmp_path: Path) -> None:
    place = prepared(tmp_path, checkpointendpoint="http://evil", checkpointregion="r")
    host = recorded_host(recorded_run(place.ledger()), CheckpointLocation(str(place)), {})
    assert not {"checkpointendpoint", "checkpointregion"} & {key.lower() for key in host.options}


def test_of_options_for_several_queries_no_sink_gets_another_s_addresses(tmp_path: Path) -> None:
    place = prepared(tmp_path, **{"kafka.bootstrap.servers": "b:1"})
    given = {"kafka.bootstrap.servers": "b:1", "storage.aws_endpoint_url": "http://h", "topic": "t"}
    assert fitting(recorded_run(place.ledger()), given) == {"kafka.bootstrap.servers": "b:1", "topic": "t"}


def test_of_options_for_several_queries_a_sink_that_gets_no_secret_keeps_its_own_addresses(tmp_path: Path) -> None:
    run = recorded_run(prepared(tmp_path, **{"kafka.bootstrap.servers": "plain:1"}).ledger())
    secured = {"kafka.bootstrap.servers": "b:1", "kafka.security.protocol": "SASL_SSL", "kafka.sasl.password": "x"}
    assert fitting(run, secured) == {}
    assert fitting(run, {"kafka.bootstrap.servers": "moved:1"}) == {"kafka.bootstrap.servers": "moved:1"}
    run.setup.update(hidden=["kafka.sasl.password"])
    assert set(fitting(run, secured)) == {"kafka.bootstrap.servers", "kafka.sasl.password"}


@pytest.mark.parametrize(
    "key", ["topic", "path", "partitionBy", "kafka.linger.ms", "transactionalIdPrefix", "import", "author"]
)
def test_what_leads_nowhere_needs_no_word(key: str) -> None:
    assert not leads_out(key, "value")


@two_users
@pytest.mark.parametrize("command", [("checkpoints", "list"), ("savepoint", "take")])
def test_a_journal_of_another_user_is_refused_with_what_to_do(command: tuple[str, ...], capsys: Capture) -> None:
    with shared_folder() as base:
        place = CliPlace(base)
        place.run()
        place.decided(0)
        more = [str(base / "saved")] if "take" in command else []
        answer(capsys, *command, str(place), *(f"{name}-warm" for name in more))  # imports what is imported late
        with another_user():
            status, document, said = answer(capsys, *command, str(place), *more)
        assert (status, document.get("condition")) == (1, "LOCATION_NOT_OURS"), said
        assert "Run this process as the user who runs the query" in document["message"]


@two_users
def test_a_savepoint_of_another_user_is_refused_with_what_to_do(capsys: Capture) -> None:
    with shared_folder() as base:
        place = CliPlace(base)
        place.run()
        place.decided(0)
        saved = str(base / "saved")
        assert answer(capsys, "savepoint", "take", str(place), saved)[0] == 0
        answer(capsys, "savepoint", "list", *saved.rsplit("/", 1))  # imports what is imported late
        with another_user():
            status, document, said = answer(capsys, "savepoint", "list", *saved.rsplit("/", 1))
        assert (status, document.get("condition")) == (1, "LOCATION_NOT_OURS"), said
