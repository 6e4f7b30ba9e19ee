"""Who we are and whom we trust, for both client libraries: checked offline."""

from __future__ import annotations

import io
import json
import ssl
import time
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import connector.kafka.client.connection  # noqa: F401 - silences what kafka-python logs of requests
from connector.kafka.client.config import SOURCE_FORBIDDEN, ClientConfig, client_config
from connector.kafka.client.tokens import TokenSource
from connector.kafka.source.read_options import READ_OPTIONS
from connector.options import hides_value
from integration.certificates import Authority, Identity
from transactional.errors import OptionError, StoreError

SECRET = "hunter2-unique"


def config_of(**given: str) -> ClientConfig:
    named = {f"kafka.{key.replace('_', '.')}": text for key, text in given.items()}
    parsed = READ_OPTIONS.parse({"subscribe": "t", "kafka.bootstrap.servers": "b:9092", **named})
    return client_config(READ_OPTIONS, parsed, SOURCE_FORBIDDEN)


def refused(**given: str) -> str:
    with pytest.raises(OptionError) as caught:
        config_of(**given).for_kafka_python()
    told = f"{caught.value}{caught.value!r}{caught.value.parameters}"
    assert SECRET not in told
    return told


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def client(authority: Authority) -> Identity:
    return authority.issue("client", password=SECRET)


SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": SECRET}
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sasl.password": SECRET}, "needs the option kafka.security.protocol: kafka.sasl.password is set"),
        ({"security.protocol": "TLS"}, "kafka.security.protocol is 'TLS'; expected one of PLAINTEXT, SSL"),
        (
            {**SASL, "sasl.mechanism": "GSSAPI"},
            "kafka.sasl.mechanism is 'GSSAPI'; expected a mechanism that both client libraries support",
        ),
        ({**SASL, "sasl.mechanism": "AWS_MSK_IAM"}, "OAUTHBEARER with kafka.sasl.oauthbearer.token.provider"),
        (
            {"security.protocol": "SASL_SSL"},
            "needs the option kafka.sasl.mechanism: it has no default here. Use one of PLAIN, SCRAM-SHA-256",
        ),
        ({**SASL, "sasl.username": ""}, "needs the option kafka.sasl.username: kafka.sasl.mechanism=PLAIN requires it"),
        (OAUTH, "needs the option kafka.sasl.oauthbearer.token.endpoint.url"),
        (
            {**OAUTH, "sasl.oauthbearer.token.endpoint.url": "https://x"},
            "needs the option kafka.sasl.oauthbearer.client.id",
        ),
        ({**OAUTH, "sasl.oauthbearer.token.provider": "no:where"}, "expected package.module:function"),
        (
            {**OAUTH, "sasl.oauthbearer.token.endpoint.url": "x", "sasl.oauthbearer.method": "aws"},
            "expected oidc with client_credentials",
        ),
        ({**SASL, "ssl.ca.location": "/no/such.pem"}, "is '/no/such.pem'; expected a file that exists on this machine"),
        (
            {**SASL, "ssl.certificate.location": __file__},
            "needs the option kafka.ssl.key.location: a client certificate and its key must both be set",
        ),
        (
            {**SASL, "ssl.ca.pem": "x"},
            "the option kafka.ssl.ca.pem is 'PEM text'; expected a value that OpenSSL can use",
        ),
        ({**SASL, "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128"}, "expected OpenSSL's names"),
        (
            {**SASL, "ssl.cipher.suites": "NOT-A-CIPHER"},
            "kafka.ssl.cipher.suites is 'NOT-A-CIPHER'; expected a value that OpenSSL can use",
        ),
        ({**SASL, "ssl.endpoint.identification.algorithm": "http"}, "expected https or none"),
        ({**SASL, "enable.ssl.certificate.verification": "yes"}, "verification is 'yes'; expected true or false"),
        ({**SASL, "ssl.enabled.protocols": "TLSv1.3"}, "both clients speak TLS 1.2 and 1.3"),
        ({**SASL, "ssl.curves.list": "P-256"}, "kafka-python, which commits the transactions, does not"),
        ({**SASL, "ssl.truststore.location": "/t.jks"}, "keytool -list -rfc"),
        ({**SASL, "ssl.truststore.type": "JKS"}, "keytool -list -rfc"),
        (
            {**SASL, "ssl.keystore.location": "/k.p12", "ssl.keystore.type": "PKCS12"},
            "openssl pkcs12 -in client.p12 -nocerts",
        ),
        ({**SASL, "ssl.keystore.password": SECRET}, "openssl pkcs12"),
        ({**SASL, "ssl.truststore.type": "PEM", "ssl.truststore.password": SECRET}, "a PEM store has no password"),
        (
            {**SASL, "ssl.truststore.certificates": "x", "ssl.ca.pem": "y"},
            "means the same as kafka.ssl.ca.pem, and both are set",
        ),
        (
            {"sasl.jaas.config": f'PlainLoginModule required password="{SECRET}";'},
            "kafka.sasl.username and kafka.sasl.password",
        ),
    ],
)
def test_it_is_refused_by_name_before_anybody_is_asked(given: dict[str, str], told: str) -> None:
    assert told in refused(**given)


def test_java_s_pem_stores_are_taken_also_where_they_are_one_line(authority: Authority, client: Identity) -> None:
    chain = client.certificate.read_text()
    config = config_of(
        **{
            "security.protocol": "ssl",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": authority.certificate.read_text().replace("\n", " "),
            "ssl.keystore.type": "pem",
            "ssl.keystore.certificate.chain": chain,
            "ssl.keystore.key": client.key.read_text(),
            "ssl.key.password": SECRET,
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
            "ssl.protocol": "TLSv1.3",
        }
    )
    assert config.settings["ssl.ca.pem"] == authority.certificate.read_text()
    assert config.settings["ssl.certificate.pem"] == chain.strip()
    assert config.settings["ssl.endpoint.identification.algorithm"] == "none"
    context = config.for_kafka_python()["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert not context.check_hostname
    assert context.cert_store_stats()["x509_ca"] == 1


def test_one_pem_file_may_hold_key_and_certificate(client: Identity) -> None:
    config = config_of(
        **{"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": str(client.both)}
    )
    config.for_kafka_python()
    assert config.settings["ssl.key.location"] == config.settings["ssl.certificate.location"] == str(client.both)


def test_a_wrong_key_password_is_told_and_not_asked_for_at_the_terminal(client: Identity) -> None:
    given = {"ssl.certificate.location": str(client.certificate), "ssl.key.location": str(client.key)}
    for password in ({}, {"ssl.key.password": f"{SECRET}-not"}):
        told = refused(**{"security.protocol": "SSL"}, **given, **password)
        assert "kafka.ssl.key.location" in told
        assert "check kafka.ssl.key.password" in told


def test_a_key_without_a_password_is_not_taken_as_text_for_spark_shows_it(client: Identity) -> None:
    given = {"ssl.certificate.pem": client.certificate.read_text(), "ssl.key.pem": client.both.read_text()}
    told = refused(**{"security.protocol": "SSL"}, **given)
    assert "kafka.ssl.key.pem is 'a key without a password'" in told
    assert client.both.read_text().splitlines()[1] not in told


@pytest.mark.parametrize(
    ("text", "verifies"), [("true", True), ("1", True), ("T", True), ("False", False), ("0", False), ("f", False)]
)
def test_both_libraries_read_the_same_of_whether_brokers_are_verified(text: str, verifies: bool) -> None:
    from confluent_kafka import Consumer

    config = config_of(**{"security.protocol": "SSL", "enable.ssl.certificate.verification": text})
    mode = config.for_kafka_python()["ssl_context"].verify_mode
    assert (mode is ssl.CERT_REQUIRED) == verifies
    assert config.for_librdkafka()["enable.ssl.certificate.verification"] == str(verifies).lower()
    Consumer({"group.id": "g", "enable.ssl.certificate.verification": text, "log_level": 0}).close()


def test_what_may_be_shown_is_shown_and_nothing_else() -> None:
    secret: tuple[str, ...] = (
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "sasl.jaas.config",
    )
    secret += ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "ssl.keystore.password", "apiToken")
    assert [key for key in secret if not hides_value(f"kafka.{key}")] == []
    shown = ("ssl.key.location", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.token.provider")
    assert [key for key in shown if hides_value(f"kafka.{key}")] == []


# -- tokens ---------------------------------------------------------------------------------------------------------

calls: list[str] = []


def provider(config: str) -> tuple[str, float, str, dict[str, str]]:
    calls.append(config)
    return f"token-{len(calls)}", time.time() + float(config), "me", {"extension": "x"}


def broken(config: str) -> str:
    if config == "raise":
        raise RuntimeError(SECRET)
    return "no pair"


def source(name: str, config: str) -> TokenSource:
    path = f"{__name__}:{name}"
    given = {"sasl.oauthbearer.token.provider": path, "sasl.oauthbearer.config": config}
    return TokenSource.of(config_of(**OAUTH, **given).settings)


def test_a_token_is_kept_for_most_of_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    first = source("provider", "1000")("")
    assert first[0] == source("provider", "1000")("")[0]
    assert first[2:] == ("me", {"extension": "x"})
    now = time.time()
    monkeypatch.setattr("connector.kafka.client.tokens.time.time", lambda: now + 800)
    assert source("provider", "1000")("")[0] != first[0]
    assert len(calls) == 2
    assert "token-1" not in repr(source("provider", "1000").token())


@pytest.mark.parametrize(
    ("config", "told"), [("raise", "NO_TOKEN.*RuntimeError"), ("pair", "INVALID_OPTION.*a function that returns")]
)
def test_a_provider_that_fails_is_named_and_what_it_says_is_not(config: str, told: str) -> None:
    with pytest.raises((StoreError, OptionError), match=told) as caught:
        source("broken", config).token()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("said", [f"no client has {SECRET}", f"secret={SECRET.replace('-', '%2D')}-{SECRET}"])
def test_an_endpoint_that_quotes_the_secret_is_quoted_without_it_in_every_process(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        told = json.dumps({"error": "invalid_client", "error_description": said}).encode()
        raise HTTPError("http://endpoint", 401, "no", Message(), io.BytesIO(told))

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    names = {"token.endpoint.url": "http://endpoint", "client.id": "me", "client.secret": SECRET}
    settings = config_of(**OAUTH, **{f"sasl.oauthbearer.{key}": text for key, text in names.items()}).settings
    with pytest.raises(StoreError, match=r"NO_TOKEN.*invalid_client") as caught:
        TokenSource.of(settings)("")  # what a task's client calls
    assert SECRET not in f"{caught.value}{caught.value!r}{caught.value.parameters}"


# -- kafka-python ---------------------------------------------------------------------------------------------------


def test_requests_that_log_in_are_in_no_debug_log(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    import logging

    with caplog.at_level(logging.DEBUG, "kafka"):
        logging.getLogger("kafka.protocol.parser").debug("Send: %r", SECRET)
        logging.getLogger("kafka.net.connection").debug("Request: %r", SECRET)
        logging.getLogger("kafka.admin.client").debug("configuration: %s", config_of(**SASL).for_kafka_python())
    assert "configuration" in caplog.text
    assert SECRET not in caplog.text
