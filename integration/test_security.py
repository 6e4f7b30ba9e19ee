"""A cluster of three nodes with TLS, log-ins and an authorizer: what works, and what users are told when it does not."""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

import pyarrow as pa
import pytest
from rich.console import Console

import connector
from connector.kafka.client.brokers import check_brokers
from connector.kafka.client.config import SOURCE_FORBIDDEN, ClientConfig, client_config
from connector.kafka.client.topics import Partition
from connector.kafka.sink.injector import Injector
from connector.kafka.sink.kafka_sink import KafkaSink
from connector.kafka.source.planning.ranges import OffsetRange
from connector.kafka.source.read_options import READ_DEFAULTS, READ_OPTIONS
from connector.kafka.source.reading.consumers import borrow_consumer
from connector.kafka.source.reading.fetch import fetch
from integration.certificates import Authority, Identity
from integration.demo.feed import feed
from integration.demo.flights import events, expected_rows, load_flights
from integration.demo.killer import FaultPoint
from integration.demo.output import OutputTopic
from integration.demo.progress import ProgressBoard
from integration.demo.report import tally
from integration.demo.trial import Trial
from integration.secured import PASSWORD, Right, SecuredCluster, grant, revoke
from integration.test_bad_input import assert_empty, failure, start, unreadable
from integration.topic_jobs import produce
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import StoreError
from transactional.sink import Options, TransactionContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INPUT, OUTPUT, GROUP, PREFIX = "secured-in", "secured-out", "secured-group", "secured-q"
MARKS, BARRIERS = "secured-marks", "secured-barriers"
"""Barrier topics: of the input, and of the query that reads it."""

REPLICAS = 3
SECONDS = 180.0
"""Within this a user is told."""

KEY_PASSWORD = "geheim-Schluessel-4402"
WRONG_PASSWORD = "falsch-Esel-5518"
CLIENT_SECRET = "oidc-Geheimnis-9925"
SCHEMA = pa.schema([("value", pa.string())])
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    made = SecuredCluster.make(tmp_path_factory.mktemp("certificates"), REPLICAS)
    with made.cluster as cluster:
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, replication=REPLICAS)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            cluster.add_scram_user("admin", PASSWORD, mechanism)
        produce(cluster, INPUT, range(5), partitions=1)
        cluster.create_topic(BARRIERS, replication=REPLICAS)
        inject(made.options("admin"))
        yield made


def client(options: Mapping[str, str]) -> ClientConfig:
    """The source's client settings."""
    parsed = READ_OPTIONS.parse({"subscribe": INPUT, **options})
    return client_config(READ_OPTIONS, parsed, SOURCE_FORBIDDEN, READ_DEFAULTS)


def inject(options: Mapping[str, str]) -> None:
    with Injector(client(options), INPUT, MARKS) as injector:
        injector.inject()


@pytest.fixture(scope="module")
def certificate(secured: SecuredCluster) -> Identity:
    """The client certificate of the super user, whose key has a password."""
    return secured.authority.issue("admin", password=KEY_PASSWORD)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    connector.register(spark)
    return spark


# -- rights ---------------------------------------------------------------------------------------------------------


def documented() -> list[Right]:
    """The rights in docs/rights.md, with the names that are used here."""
    names = {
        "the input": INPUT,
        "the output": OUTPUT,
        "those in `alignOn`": MARKS,
        "`barrierTopic`": BARRIERS,
        "`kafka.group.id`": GROUP,
        "`transactionalIdPrefix`, prefixed": f"{PREFIX}*",
    }
    page = (Path(__file__).parent.parent / "docs" / "rights.md").read_text()
    rows = re.findall(
        r"^\| (topic|group|transactional_id) \| ([^|]+) \| (\w+) \| (?:source|sink) \|", page, re.MULTILINE
    )
    return [(kind, names[name], operation.lower()) for kind, name, operation in rows]


RIGHTS = documented()


def test_the_documents_name_the_rights() -> None:
    assert len(RIGHTS) == len(set(RIGHTS)) == 8


def read(session: SparkSession, options: Mapping[str, str]) -> Any:
    source = {**options, "kafka.group.id": GROUP, "subscribe": INPUT, "startingOffsets": "earliest"}
    return session.readStream.format("barrier-kafka").options(**source).load().select("value")


def told_by_source_or_sink(session: SparkSession, options: dict[str, str], location: Path) -> str:
    """What a user is told who starts a query: by its source or its sink, whoever looks first."""
    sink = {
        **options,
        "topic": OUTPUT,
        "barrierTopic": BARRIERS,
        "transactionalIdPrefix": PREFIX,
        "checkpointLocation": str(location),
    }
    begin = time.monotonic()
    try:
        frame = read(session, {**options, "alignOn": MARKS})
    except Exception as problem:  # noqa: BLE001 - Spark's own exception around ours
        said = str(problem)
    else:
        said = failure(start(frame, sink))
    assert time.monotonic() - begin < SECONDS
    assert PASSWORD not in said
    return said


@pytest.mark.parametrize("missing", RIGHTS, ids=lambda right: f"{right[0]}-{right[1].strip('*')}-{right[2]}")
def test_each_documented_right_is_needed_and_named_where_it_is_missing(
    secured: SecuredCluster, session: SparkSession, tmp_path: Path, missing: Right
) -> None:
    kind, name, operation = missing
    options = secured.user(f"without-{next(NUMBERS)}", set(RIGHTS) - {missing})
    said = told_by_source_or_sink(session, options, tmp_path / "location")
    # What is missing whole is missed by its weakest part, DESCRIBE.
    kinds = f"(DESCRIBE|{operation.upper()}) on {kind.replace('_', ' ')} {re.escape(name.strip('*'))}"
    assert re.search(rf"MISSING_RIGHT.*{kinds}.*kafka-acls\.sh", said, re.DOTALL), said
    assert_empty(secured.cluster, OUTPUT)


INJECTING = [
    ("topic", INPUT, "describe"),
    ("topic", MARKS, "read"),
    ("topic", MARKS, "write"),
    ("transactional_id", f"barrier-inject.{MARKS}", "write"),
]


@pytest.mark.parametrize("missing", [None, *INJECTING], ids=str)
def test_an_injector_needs_the_documented_rights(secured: SecuredCluster, missing: Right | None) -> None:
    options = secured.user(f"injector-{next(NUMBERS)}", [right for right in INJECTING if right != missing])
    if missing is None:
        inject(options)
        return
    kind, name, operation = missing
    # What is missing whole is missed by its weakest part, DESCRIBE.
    kinds = f"(DESCRIBE|{operation.upper()}) on {kind.replace('_', ' ')} {name}"
    with pytest.raises(StoreError, match=rf"MISSING_RIGHT.*{kinds}"):
        inject(options)


# -- the demo -------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_the_demo_s_query_with_exactly_the_documented_rights_is_killed_and_goes_on(
    secured: SecuredCluster, tmp_path: Path
) -> None:
    rows, partitions = 2000, 2
    names = {INPUT: "secured-flights", OUTPUT: "secured-departed"}
    servers = secured.cluster.bootstrap_servers
    for topic in names.values():
        secured.cluster.create_topic(topic, partitions=partitions, replication=REPLICAS)
    flights = load_flights(rows)
    feed(servers, "secured-flights", events(flights), partitions)
    options = secured.user("demo", {(kind, names.get(name, name), what) for kind, name, what in RIGHTS})
    output = OutputTopic(servers, "secured-departed", partitions)
    more = {**options, "kafka.group.id": GROUP, "transactionalIdPrefix": f"{PREFIX}-demo"}
    trial = Trial("secured", tmp_path, "secured-flights", output, "exactly-once", rows // 2, more)
    expected = expected_rows(flights)
    with ProgressBoard(Console(file=StringIO()), trial.name, len(expected)) as board:
        result = trial.run(FaultPoint(tmp_path / "faults", "commit.one"), board)
    assert result.kills == 1
    found = tally(expected, output.read_all())
    assert (found.missing, found.doubled, found.missing_content, found.doubled_content) == (0, 0, 0, 0), found
    assert PASSWORD not in trial.log.read_text()


# -- ways in --------------------------------------------------------------------------------------------------------


def token_of(user: str, life: float = 600) -> str:
    def part(content: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': user, 'iat': now - 10, 'exp': now + life})}."


def provide_token(config: str) -> tuple[str, float]:
    """A user's own function, as `kafka.sasl.oauthbearer.token.provider` names it."""
    return token_of(config), time.time() + 600


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a token endpoint that knows one client."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            basic = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            known = basic == f"admin:{CLIENT_SECRET}" and form == {
                "grant_type": ["client_credentials"],
                "scope": ["kafka"],
            }
            told = {"access_token": token_of("admin"), "expires_in": 600} if known else {"error": "invalid_client"}
            body = json.dumps(told).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    server.server_close()
    thread.join()


def tokens_from(secured: SecuredCluster, **more: str) -> dict[str, str]:
    named = {f"kafka.sasl.oauthbearer.{key.replace('_', '.')}": text for key, text in more.items()}
    bearer = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    return {**secured.tls("SECURE"), **bearer, **named}


@pytest.fixture(params=["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "provider", "endpoint", "certificate", "java-pem"])
def way_in(
    request: pytest.FixtureRequest, secured: SecuredCluster, certificate: Identity, endpoint: str
) -> dict[str, str]:
    """Options of the super user, by each way to log in."""
    match request.param:
        case "provider":
            return tokens_from(secured, token_provider=f"{__name__}:provide_token", config="admin")
        case "endpoint":
            client = {"client_id": "admin", "client_secret": CLIENT_SECRET, "scope": "kafka"}
            return tokens_from(secured, token_endpoint_url=endpoint, **client)
        case "certificate":
            return {
                **secured.tls("MUTUAL"),
                "kafka.ssl.certificate.location": str(certificate.certificate),
                "kafka.ssl.key.location": str(certificate.key),
                "kafka.ssl.key.password": KEY_PASSWORD,
            }
        case "java-pem":
            return {
                "kafka.bootstrap.servers": secured.cluster.servers("MUTUAL"),
                "kafka.security.protocol": "SSL",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.certificates": secured.authority.certificate.read_text(),
                "kafka.ssl.keystore.type": "PEM",
                "kafka.ssl.keystore.certificate.chain": certificate.certificate.read_text(),
                "kafka.ssl.keystore.key": certificate.key.read_text(),
                "kafka.ssl.key.password": KEY_PASSWORD,
            }
        case mechanism:
            return secured.options("admin", mechanism)


def test_rows_are_written_committed_and_read_by_both_libraries(secured: SecuredCluster, way_in: dict[str, str]) -> None:
    topic = f"way-{next(NUMBERS)}"
    secured.cluster.create_topic(topic, replication=REPLICAS)
    sink = KafkaSink(Options({**way_in, "topic": topic, "transactionalIdPrefix": topic}), SCHEMA)
    sink.identify()
    transaction = sink.beginTransaction(TransactionContext("query", 0, 0, next(NUMBERS), topic, "nonce"))
    sink.write(transaction, pa.RecordBatch.from_pydict({"value": ["a", "b"]}, schema=SCHEMA))
    handle = sink.preCommit(transaction)
    assert handle is not None
    sink.commit([handle], cast("DecidedCheckpoint", None))
    sink.close()
    config = client({**way_in, "kafka.group.id": "reader", "subscribe": topic})
    check_brokers(config)
    at = Partition(topic, 0)
    with borrow_consumer(config) as consumer:
        batches = [records.to_batch(("value",)) for records in fetch(consumer, [OffsetRange(at, 0, 2)])]
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [b"a", b"b"]


# -- what users are told --------------------------------------------------------------------------------------------


WRONG: dict[str, tuple[str, ...]] = {
    "password": ("AUTHENTICATION_FAILED", "invalid credentials", "kafka.sasl.password"),
    "mechanism": ("AUTHENTICATION_FAILED", "SCRAM-SHA-256", "kafka.sasl.mechanism"),
    "authority": ("TLS_FAILED", "unable to get local issuer certificate", "kafka.ssl.ca.location"),
    "expired": ("TLS_FAILED", "certificate has expired", "renew"),
    "name": ("TLS_FAILED", "IP address mismatch", "kafka.ssl.endpoint.identification.algorithm"),
    "no-certificate": ("TLS_FAILED", "alert", "kafka.ssl.certificate.location"),
    "key-password": ("INVALID_OPTION", "kafka.ssl.key.location", "kafka.ssl.key.password"),
    "token": ("NO_TOKEN", "HTTP 401, invalid_client", "kafka.sasl.oauthbearer.client.secret"),
}


@pytest.fixture(params=sorted(WRONG))
def wrong(
    request: pytest.FixtureRequest, secured: SecuredCluster, certificate: Identity, endpoint: str, tmp_path: Path
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Options with one mistake, and what the error must say."""
    match request.param:
        case "password":
            options = secured.options("admin", password=WRONG_PASSWORD)
        case "mechanism":
            secured.cluster.add_scram_user("only-512", PASSWORD)
            options = secured.options("only-512", "SCRAM-SHA-256")
        case "authority":
            other = Authority(tmp_path / "other")
            options = {**secured.options("admin"), "kafka.ssl.ca.location": str(other.certificate)}
        case "expired":
            options = secured.tls("EXPIRED")
        case "name":
            options = secured.tls("OTHER")
        case "no-certificate":
            options = secured.tls("MUTUAL")
        case "key-password":
            pair = {"certificate": certificate.certificate, "key": certificate.key}
            files = {f"kafka.ssl.{what}.location": str(path) for what, path in pair.items()}
            options = {**secured.tls("MUTUAL"), **files, "kafka.ssl.key.password": WRONG_PASSWORD}
        case _:
            client = {"client_id": "admin", "client_secret": WRONG_PASSWORD}
            options = tokens_from(secured, token_endpoint_url=endpoint, **client)
    return options, WRONG[request.param]


def test_each_side_says_in_time_what_is_wrong(
    secured: SecuredCluster, session: SparkSession, tmp_path: Path, wrong: tuple[dict[str, str], tuple[str, ...]]
) -> None:
    options, parts = wrong
    location = str(tmp_path / "location")
    begin = time.monotonic()
    with pytest.raises(Exception, match=parts[0]) as caught:
        read(session, options)
    middle = time.monotonic()
    said = failure(start(unreadable(session), {**options, "topic": OUTPUT, "checkpointLocation": location}))
    assert max(time.monotonic() - middle, middle - begin) < SECONDS
    for text in (str(caught.value), said):
        assert all(part in text for part in parts), text
        assert WRONG_PASSWORD not in text
        assert PASSWORD not in text
    assert_empty(secured.cluster, OUTPUT)


def test_a_right_that_is_taken_away_while_a_query_runs_is_named(
    secured: SecuredCluster, session: SparkSession, tmp_path: Path
) -> None:
    name = f"revoked-{uuid.uuid4().hex[:6]}"
    secured.cluster.create_topic(name, replication=REPLICAS)
    rights = {(kind, name if where == OUTPUT else where, what) for kind, where, what in RIGHTS}
    options = secured.user(name, rights)
    more = {
        "topic": name,
        "transactionalIdPrefix": f"{PREFIX}-{name}",
        "checkpointLocation": str(tmp_path / "location"),
    }
    query = start(read(session, options), {**options, **more})
    try:
        query.processAllAvailable()
        revoke(secured.cluster, name)
        produce(secured.cluster, INPUT, range(5, 6), partitions=1)
        said = failure(query)
    finally:
        query.stop()
        grant(secured.cluster, name, [])
    assert re.search(r"MISSING_RIGHT.*(DESCRIBE|READ|WRITE) on (topic|transactional id) secured", said, re.DOTALL), said


# -- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_secrets_are_in_no_log_plan_progress_error_or_file(
    secured: SecuredCluster, certificate: Identity, endpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "told"
    folder.mkdir()
    secured.cluster.create_topic("secured-told", replication=REPLICAS)
    # PLAIN: the password itself goes over the wire. The rest is not used, and no business of any log either.
    options = {
        **secured.options("admin", "PLAIN"),
        "kafka.debug": "all",
        "kafka.ssl.key.pem": certificate.key.read_text(),
        "kafka.ssl.certificate.pem": certificate.certificate.read_text(),
        "kafka.ssl.key.password": KEY_PASSWORD,
        "kafka.sasl.oauthbearer.client.secret": CLIENT_SECRET,
    }
    jaas = f'PlainLoginModule required username="admin" password="{PASSWORD}";'
    wrongs: list[tuple[str, dict[str, str]]] = [
        ("source", {"kafka.sasl.password": WRONG_PASSWORD}),
        ("source", {"kafka.ssl.key.password": WRONG_PASSWORD}),
        ("source", {"kafka.sasl.jaas.config": jaas}),
        ("source", {"kafka.ssl.key.pem": certificate.both.read_text(), "kafka.ssl.key.password": ""}),
        ("source", {"kafka.bogus.password": WRONG_PASSWORD}),
        ("sink", {"kafka.sasl.password": WRONG_PASSWORD}),
        ("sink", {"kafka.sasl.jaas.config": jaas}),
    ]
    source = {**options, "subscribe": INPUT, "startingOffsets": "earliest", "kafka.group.id": GROUP}
    sink = {**options, "topic": "secured-told", "transactionalIdPrefix": f"{PREFIX}-told"}
    (folder / "job.json").write_text(json.dumps({"source": source, "sink": sink, "wrong": wrongs}))
    root = str(Path(__file__).parent.parent)
    log = tmp_path / "everything"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "integration.told_query", str(folder)]
        ended = subprocess.run(command, cwd=root, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=240)
    text = log.read_text(errors="replace")
    assert ended.returncode == 0, text[-3000:]
    assert text.count("REFUSED ") == len(wrongs)
    assert "PROGRESS [" in text
    assert "Physical Plan" in text
    assert "DEBUG" in text
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any("barrier/log" in name for name in files)
    key = certificate.both.read_text().splitlines()[1]  # not encrypted: refused as text, and not shown
    secrets = {
        "password": PASSWORD,
        "wrong": WRONG_PASSWORD,
        "key": key,
        "key's": KEY_PASSWORD,
        "client's": CLIENT_SECRET,
    }
    found = Counter(
        (name, what)
        for name, content in files.items()
        for what, secret in secrets.items()
        for form in (secret.encode(), base64.b64encode(secret.encode()))
        if form in content
    )
    assert not found, {
        what: [line[:400] for line in text.splitlines() if secret in line][:3] for what, secret in secrets.items()
    }
