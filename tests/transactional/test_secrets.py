"""Texts without secrets."""

from __future__ import annotations

import pytest

from transactional.errors import HookError, OptionError, TransactionLostError
from transactional.failure import failure_of
from transactional.secrets import hides_value, hiding, is_secret, masked, without_named_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("can't connect to postgres://admin:s3cret@host/db", "can't connect to postgres://admin:(hidden)@host/db"),
        ('FATAL: dsn "user=u password=s3cret host=h"', 'FATAL: dsn "user=u password=(hidden) host=h"'),
        ("{'kafka.sasl.password': 's3cret with blanks', 'a': 1}", "{'kafka.sasl.password': (hidden), 'a': 1}"),
        ('{"client_secret":"s3cret"}', '{"client_secret":(hidden)}'),
        ("GET /?access_token=s3cret&x=1", "GET /?access_token=(hidden)&x=1"),
        ("fs.s3a.secret.key: s3cret", "fs.s3a.secret.key: (hidden)"),
        ("GET https://h/t?pass%77ord=s3cret&x=1", "GET https://h/t?pass%77ord=(hidden)&x=1"),
        ("postgresql://h/db?options=-c%20app.token%3Ds3cret", "postgresql://h/db?options=-c%20app.token%3D(hidden)"),
        ("options=-c app.token=s3cret", "options=-c app.token=(hidden)"),
        ("can't open http://u%3As3cret@h/x", "can't open http://u%3A(hidden)@h/x"),
        ("abfss://c@a.dfs.core.windows.net/t?sv=1&sig=s3cret", "abfss://c@a.dfs.core.windows.net/t?sv=1&sig=(hidden)"),
        ("host=h pwd=s3cret", "host=h pwd=(hidden)"),
        ("host=h pw=s3cret", "host=h pw=(hidden)"),
        ("Authorization: Digest s3cret", "Authorization: (hidden)"),
        ("my.key=s3cret, masterkey: s3cret", "my.key=(hidden), masterkey: (hidden)"),
        ("Authorization: Bearer s3cret", "Authorization: (hidden)"),
        ("Duplicate entry for key: orders", "Duplicate entry for key: orders"),
        ("the upsertKey: id", "the upsertKey: id"),
        ("password authentication failed for user u", "password authentication failed for user u"),
        ("see https://host:8443/token/x", "see https://host:8443/token/x"),
    ],
)
def test_what_names_itself_a_secret_is_hidden(text: str, shown: str) -> None:
    assert without_named_secrets(text) == shown


def test_of_two_secrets_the_longer_is_hidden_first() -> None:
    assert masked("abc and ab", ["ab", "abc"]) == "(hidden) and (hidden)"
    long = "correct-horse-battery"
    assert masked(f"{long}-staple and {long}", [long, f"{long}-staple"]) == "(hidden) and (hidden)"


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
        ("postgresql://db/sales?pass%77ord=x", True),
        ("postgresql://db/sales?options=-c%20app.token%3Dx", True),
        ("postgresql://db/sales?options=-c app.token=x", True),
        ("postgresql://user%3Apassword@db/sales", True),
        ("postgresql://user%253Apassword@db/sales", True),
        ("host=db password=x", True),
        ("host=db password = 'x'", True),
        ("abfss://c@a.dfs.core.windows.net/t?sv=1&sig=x", True),
        ("postgresql://me@db:5432/sales?sslmode=require", False),
        ("s3://bucket/token=5/orders", False),
        ("s3://bucket/a%3Ab@c", False),
        ("abfss://container@account.dfs.core.windows.net/tables/orders", False),
        ("http://registry:8081/subjects", False),
    ],
)
def test_an_address_with_a_password_is_a_secret(url: str, secret: bool) -> None:
    assert is_secret("url", url) is secret


@pytest.mark.parametrize(
    "name", ["masterkey", "sslkey", "my.key", "pwd", "pw", "authorization", "x-signature", "db.pass"]
)
def test_an_option_that_is_named_like_a_secret_is_one(name: str) -> None:
    assert hides_value(name)


@pytest.mark.parametrize("name", ["upsertKey", "key", "keyColumn", "compass", "bypass", "design", "monkey"])
def test_an_option_that_only_sounds_like_a_secret_is_none(name: str) -> None:
    assert not hides_value(name)


@pytest.mark.parametrize("secret", ["postgres", "b", "database", "a", "the", "2pc-postgresql", "dsn"])
def test_hiding_a_secret_that_is_a_word_of_ours_does_not_give_it_away(secret: str) -> None:
    """A hole in a sentence that everybody knows shows the secret."""
    quoted = f"login as admin/{secret} failed"
    given = {"owner": "2pc-postgresql", "option": "dsn", "value": "x"}
    bare = str(OptionError("INVALID_OPTION", **given, expectation="login as admin/? failed"))
    with pytest.raises(OptionError) as found, hiding([secret]):
        raise OptionError("INVALID_OPTION", **given, expectation=quoted)
    text = str(found.value)
    assert text == bare.replace("?", "(hidden)")
    assert quoted not in text
    assert (
        masked("the databases of 2pc-postgresqls", ["b", "postgres", "database"]) == "the databases of 2pc-postgresqls"
    )


def test_a_long_secret_is_hidden_inside_a_word_too() -> None:
    assert masked("xn0body-kn0ws-this-onex", ["n0body-kn0ws-this-one"]) == "x(hidden)x"
