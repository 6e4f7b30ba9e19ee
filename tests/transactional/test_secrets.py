"""Texts without secrets."""

from __future__ import annotations

import pytest

from transactional.errors import HookError, TransactionLostError
from transactional.failure import failure_of
from transactional.secrets import hiding, is_secret, masked, without_named_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("can't connect to postgres://admin:s3cret@host/db", "can't connect to postgres://admin:(hidden)@host/db"),
        ('FATAL: dsn "user=u password=s3cret host=h"', 'FATAL: dsn "user=u password=(hidden) host=h"'),
        ("{'kafka.sasl.password': 's3cret with blanks', 'a': 1}", "{'kafka.sasl.password': (hidden), 'a': 1}"),
        ('{"client_secret":"s3cret"}', '{"client_secret":(hidden)}'),
        ("GET /?access_token=s3cret&x=1", "GET /?access_token=(hidden)&x=1"),
        ("fs.s3a.secret.key: s3cret", "fs.s3a.secret.key: (hidden)"),
        ("password authentication failed for user u", "password authentication failed for user u"),
        ("see https://host:8443/token/x", "see https://host:8443/token/x"),
    ],
)
def test_what_names_itself_a_secret_is_hidden(text: str, shown: str) -> None:
    assert without_named_secrets(text) == shown


def test_of_two_secrets_the_longer_is_hidden_first() -> None:
    assert masked("abc and ab", ["ab", "abc"]) == "(hidden) and (hidden)"


def test_an_error_of_somebody_else_is_kept_without_its_secrets() -> None:
    """What the journal keeps of a restart, and the health file."""
    assert "s3cret" not in failure_of(ConnectionError("postgres://u:s3cret@h: no route")).text
    text = "Traceback (most recent call last):\n  File\nOSError: login with password='s3cret' failed\n"
    assert failure_of(text).text == "OSError: login with password=(hidden) failed"


def test_an_error_that_quotes_an_option_is_raised_without_it_and_without_its_causes() -> None:
    with pytest.raises(RuntimeError) as found, hiding(["s3cret"]):
        raise ConnectionError("u/s3cret was refused")
    assert str(found.value) == "ConnectionError: u/(hidden) was refused"
    assert found.value.__suppress_context__
    with pytest.raises(HookError) as ours, hiding(["s3cret"]):
        raise HookError("HOOK_FAILED", "the hook raised", reason="s3cret") from ConnectionError("s3cret")
    assert (ours.value.condition, ours.value.message) == ("HOOK_FAILED", "the hook raised")
    assert ours.value.parameters == {"reason": "(hidden)"}
    assert ours.value.__cause__ is None
    with pytest.raises(TransactionLostError) as lost, hiding(["s3cret"]):
        raise TransactionLostError("FILE_LOST", "of s3cret", [{"file": "f"}])
    assert lost.value.handles == [{"file": "f"}]


def test_an_error_without_a_secret_stays_as_it_is() -> None:
    problem = ConnectionError("refused")
    with pytest.raises(ConnectionError) as found, hiding(["s3cret"]):
        raise problem
    assert found.value is problem


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgresql://me:hun/ter2@db/sales", True),
        ("postgresql://me:p@ss@db/sales", True),
        ("jdbc:postgresql://db/sales?user=me&password=x", True),
        ("jdbc:postgresql://db/sales?user=me;password=x", True),
        ("postgresql://me@db:5432/sales?sslmode=require", False),
        ("abfss://container@account.dfs.core.windows.net/tables/orders", False),
        ("http://registry:8081/subjects", False),
    ],
)
def test_an_address_with_a_password_is_a_secret(url: str, secret: bool) -> None:
    assert is_secret("url", url) is secret
