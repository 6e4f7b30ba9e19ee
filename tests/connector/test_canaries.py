"""A value that is found nowhere else stands in every option that exists: where does it turn up? Without Spark and brokers."""

from __future__ import annotations

import ast
import ctypes
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from connector.delta.write_options import WRITE_OPTIONS as DELTA_OPTIONS
from connector.formats.discovery import find_sink
from connector.kafka.client.client_settings import JAVA_SETTINGS
from connector.kafka.sink.write_options import WRITE_OPTIONS as KAFKA_OPTIONS
from connector.kafka.source.read_options import READ_OPTIONS, parse_read_options
from connector.location.offset_log import spark_view
from connector.options import HOST_OPTIONS
from connector.schema_registry.registry import ALSO_SECRET, Registry
from connector.spark.hosted_sink import HostedSink
from integration.file_sink import FileSink, FileTransaction
from tests.connector.cli_place import CliPlace, answer, dead_process
from transactional import faults
from transactional.errors import TwoPhaseCommitError
from transactional.sink import Options

Capture = pytest.CaptureFixture[str]

SCHEMA = StructType([StructField("value", LongType())])

KAFKA_SECRETS = (
    "sasl.jaas.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
)

KAFKA_HARMLESS = (
    "key.deserializer",
    "key.serializer",
    "oauthbearer_token_refresh_cb",
    "partitioner.ignore.keys",
    "sasl.kerberos.keytab",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.token.provider",
    "ssl.key.location",
    "ssl.keymanager.algorithm",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl_key",
)
"""Names that sound like secrets: files, addresses, Java's classes, and what no text can set."""

STORAGE_VISIBLE = re.compile(
    r"(aws_|azure_|azure_storage_|google_)?(region|default_region|endpoint|endpoint_url|allow_http|virtual_hosted_style_request"
    r"|conditional_put|timeout|connect_timeout|max_retries)"
)
"""All that the journal may show of an object store's options: this list is the test's own."""


def canary(key: str) -> str:
    """Unlike any other text, and a number with a unit for what parses its value."""
    return f"canary-{key.replace('.', '-').lower()}-yranac"


@cache
def kafka_keys() -> list[str]:
    """All settings of librdkafka, as it prints them itself, and of Java's clients."""
    package = find_spec("confluent_kafka")
    assert package is not None
    assert package.origin is not None
    [library] = Path(f"{Path(package.origin).parent}.libs").glob("librdkafka*")
    rdkafka, libc = ctypes.CDLL(str(library)), ctypes.CDLL(None)
    libc.tmpfile.restype, libc.ftell.restype = ctypes.c_void_p, ctypes.c_long
    file = ctypes.c_void_p(libc.tmpfile())
    rdkafka.rd_kafka_conf_properties_show(file)
    text = ctypes.create_string_buffer(libc.ftell(file))
    libc.rewind(file)
    libc.fread(text, 1, len(text), file)
    libc.fclose(file)
    found = set(re.findall(rb"^([a-z0-9_.]+)\s+\|", text.raw, re.MULTILINE))
    assert len(found) > 150
    return sorted({*(name.decode() for name in found), *JAVA_SETTINGS, *KAFKA_SECRETS})


@cache
def storage_keys() -> list[str]:
    """All settings of the three stores, as their client declares them, with the prefixes that deltalake takes, too."""
    package = find_spec("obstore")
    assert package is not None
    assert package.origin is not None
    found = set()
    for name in ("_aws", "_azure", "_gcs", "_client"):
        tree = ast.parse((Path(package.origin).parent / "_store" / f"{name}.pyi").read_text())
        for kind in (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Config")):
            found |= {each.target.id for each in kind.body if isinstance(each, ast.AnnAssign)}  # type: ignore[union-attr]
    assert {"account_key", "sas_key", "service_account_key", "proxy_url", "secret_access_key"} <= found
    prefixes = ("", "aws_", "azure_", "azure_storage_", "google_")
    return sorted(f"{prefix}{key}" for key in found for prefix in prefixes)


def secret_options() -> dict[str, str]:
    """Every option whose value nobody may see."""
    keys = [f"kafka.{key}" for key in KAFKA_SECRETS]
    keys += [f"storage.{key}" for key in storage_keys() if not STORAGE_VISIBLE.fullmatch(key)]
    keys += ["db.password", "api_key", "webhook.connection_string"]
    return {key: canary(key) for key in keys}


def every_option() -> dict[str, str]:
    """Every option that a sink could be given, but those of the host that are parsed at once."""
    tables = (KAFKA_OPTIONS, DELTA_OPTIONS, READ_OPTIONS)
    host = {option.key.lower() for option in HOST_OPTIONS.options}
    keys = [option.key for table in tables for option in table.options if option.key.lower() not in host]
    keys += [f"kafka.{key}" for key in kafka_keys()] + [f"storage.{key}" for key in storage_keys()]
    in_url = {"kafka.sasl.oauthbearer.token.endpoint.url": f"https://u:{canary('url')}@host/token"}
    return {**{key: canary(key) for key in keys}, **secret_options(), **in_url}


def seen_in(text: str, secrets: Mapping[str, str] | None = None) -> list[str]:
    """The secret options whose values stand there."""
    looked_for = {**secret_options(), "a URL's password": canary("url")} if secrets is None else secrets
    return sorted(key for key, value in looked_for.items() if value in text)


def files_below(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes().decode(errors="replace")


def test_every_name_that_sounds_like_a_secret_is_known_as_one_or_as_harmless() -> None:
    """A new release of the client brings new options: this names those that somebody has to look at."""
    sounds = [key for key in kafka_keys() if re.search(r"passw|passphrase|secret|token|key|credential\b|jaas", key)]
    assert set(sounds) - {*KAFKA_SECRETS, *KAFKA_HARMLESS} == set()


def test_the_journal_s_run_shows_what_is_harmless_and_nothing_else(tmp_path: Path) -> None:
    options = {**every_option(), "checkpointLocation": str(tmp_path)}
    setup = HostedSink(FileSink, Options(options), SCHEMA)._setup()
    shown = set(setup["options"])
    assert seen_in(json.dumps(setup)) == []
    storage = {f"storage.{key}" for key in storage_keys() if STORAGE_VISIBLE.fullmatch(key)}
    assert storage <= shown, "the search can't find what is not there"
    assert {key for key in shown if key.startswith("storage.")} == storage
    kafka = {f"kafka.{key}" for key in kafka_keys()} - {key.lower() for key in secret_options()}
    sounding = {f"kafka.{key}" for key in (*KAFKA_HARMLESS, "sasl.oauthbearer.client.credentials.client.id")}
    assert kafka - shown <= sounding, "hidden for no reason"
    assert {*setup["hidden"]} >= {key.lower() for key in secret_options()}


# -- errors, logs and reprs of the formats themselves ---------------------------------------------------------------


def _kafka_sink(options: Mapping[str, str]) -> object:
    return find_sink("2pc-kafka")(Options(options), pa.schema([("value", pa.binary())]))


def _delta_sink(options: Mapping[str, str]) -> object:
    return find_sink("2pc-delta")(Options(options), pa.schema([("value", pa.int64())]))


BASES: Mapping[str, tuple[Callable[[Mapping[str, str]], object], Mapping[str, str]]] = {
    "2pc-kafka": (_kafka_sink, {"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:1"}),
    "2pc-delta": (_delta_sink, {"path": "/tmp/none"}),
    "barrier-kafka": (parse_read_options, {"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1"}),
}


@pytest.mark.parametrize("name", BASES)
def test_a_format_quotes_no_secret_that_it_refuses_or_takes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each option alone, so that what refuses one does not hide the next."""
    make, base = BASES[name]
    caplog.set_level(logging.DEBUG)
    refused = 0
    for key, value in {**every_option(), **{f"{key}x": value for key, value in secret_options().items()}}.items():
        try:
            made = make({**base, key.lower(): value})
        except (TwoPhaseCommitError, ValueError) as problem:
            refused += 1
            told = "".join(traceback.format_exception(problem)) + repr(getattr(problem, "parameters", ""))
        else:
            told = f"{made!r} {made}"
        assert seen_in(told, {key: value} if key in secret_options() else {}) == [], key
    assert refused > 5
    assert seen_in(caplog.text) == []


def test_what_spark_would_show_of_a_source_is_named(caplog: pytest.LogCaptureFixture) -> None:
    login = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    login |= {"kafka.sasl.oauthbearer.token.provider": f"{__name__}:canary"}
    login |= {"kafka.sasl.oauthbearer.config": canary("config")}
    parse_read_options({**BASES["barrier-kafka"][1], **login}).config.warn_of_shown()
    [said] = caplog.messages
    assert "shows the option kafka.sasl.oauthbearer.config" in said
    assert canary("config") not in said


def test_a_registry_shows_none_of_its_secrets() -> None:
    secrets = {key: canary(key) for key in (*ALSO_SECRET, "ssl.key.pem", "proxy.password")}
    registry = Registry({**secrets, "url": f"http://u:{canary('url')}@h"})
    text = f"{registry!r} {registry.url} {registry.scrub(json.dumps(secrets))} {registry.scrub(canary('url'))}"
    assert seen_in(text, {**secrets, "url": canary("url")}) == []


# -- a query's life, killed at every point --------------------------------------------------------------------------


ONCE = {key: value for key, value in every_option().items() if not re.match(r"storage\.(aws|azure|google)_", key)}
"""Every option; of an object store's under one name each."""


class Killed(BaseException):
    """In place of a SIGKILL: nothing of ours catches it."""


class Talkative(FileSink):
    """Its client quotes everything that it was given, whenever it fails."""

    fails = False

    @classmethod
    def name(cls) -> str:
        return "2pc-talkative"

    def write(self, transaction: FileTransaction, batch: pa.RecordBatch) -> None:
        if self.fails:
            raise ConnectionError(" ".join(f"{key}={value}" for key, value in self.options.items()))
        super().write(transaction, batch)

    def inspect(self, handles: Any) -> Any:
        if self.fails:
            raise ConnectionError(" ".join(f"{key}={value}" for key, value in self.options.items()))
        return super().inspect(handles)

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self.options = options


def one_batch(place: CliPlace, batch: int) -> None:
    """What Spark calls for a micro-batch."""
    (place.path / "offsets" / str(batch)).write_text(f"v1\n{{}}\nline {batch}")
    options = {**ONCE, "path": str(place.output), "checkpointLocation": str(place)}
    sink = HostedSink(Talkative, Options(options), SCHEMA)
    with sink.coordinator(spark_view(sink.location), "d", dict(dead_process())) as coordinator:
        plan = coordinator.plan()
    rows = iter([pa.record_batch({"value": [1, 2]})])
    acknowledged = sink.write(plan, rows, 0, 0)
    with sink.coordinator(spark_view(sink.location), "d", dict(dead_process())) as coordinator:
        coordinator.commit([acknowledged], batch)
    (place.path / "commits" / str(batch)).write_text("v1\n{}")


def two_batches(place: CliPlace) -> None:
    """The first may be committed, or drained."""
    one_batch(place, 0)
    one_batch(place, 1)


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The points that are passed; what is put before them kills at that point."""
    points: list[str] = []
    monkeypatch.setattr(faults, "reach", points.append)
    return points


@pytest.mark.slow
def test_a_query_s_life_leaves_no_secret_behind_wherever_it_is_killed(
    tmp_path: Path,
    reached: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: Capture,
) -> None:
    caplog.set_level(logging.DEBUG)
    whole = CliPlace(tmp_path / "whole", Talkative)
    one_batch(whole, 0)
    points = [*reached]
    assert {"task.prepared", "journal.created"} <= set(points)
    for number in (points.index(point) for point in dict.fromkeys(points)):
        place = CliPlace(tmp_path / f"killed-{number}", Talkative)
        left = [number]

        def reach(point: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed(point)

        monkeypatch.setattr(faults, "reach", reach)
        with pytest.raises(Killed):
            one_batch(place, 0)
        monkeypatch.setattr(faults, "reach", lambda point: None)
        monkeypatch.setattr(Talkative, "fails", True)
        with pytest.raises((TwoPhaseCommitError, RuntimeError)) as problem:
            two_batches(place)
        told = "".join(traceback.format_exception(problem.value))
        assert "(hidden)" in told, "it has quoted its options"
        assert seen_in(told) == []
        file = tmp_path / "secrets"
        file.write_text("".join(f"{key}={value}\n" for key, value in ONCE.items()))
        for command in (("stop",), ("recover",), ("rewind", "--to", "2", "--yes")):
            _, document, said = answer(capsys, *command, str(place), "--options-file", str(file))
            assert seen_in(json.dumps(document) + said) == []
        file.unlink()
        monkeypatch.setattr(Talkative, "fails", False)
    saved, completed = str(tmp_path / "saved"), whole.ledger().completed
    assert completed is not None
    for words in (
        ("savepoint", "take", str(whole), saved),
        ("savepoint", "list", *saved.rsplit("/", 1)),
        ("checkpoints", "list", str(whole)),
        ("checkpoints", "show", str(whole), str(completed.id)),
    ):
        status, document, said = answer(capsys, *words)
        assert status == 0, (words, document)
        assert seen_in(json.dumps(document) + said) == []
    assert seen_in(caplog.text) == []
    written = {name for name, _ in files_below(tmp_path)}
    assert {"1.json", "savepoint.json"} <= written
    assert {name: seen for name, text in files_below(tmp_path) if (seen := seen_in(text))} == {}
