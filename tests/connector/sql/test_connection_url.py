"""Addresses of databases, as libpq and JDBC write them."""

from __future__ import annotations

import pytest

from connector.sql.connection_url import parse_url
from transactional.errors import OptionError


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (
            "postgresql://me:a%40b@db.example:6432/sales?sslmode=require",
            {
                "user": "me",
                "password": "a@b",
                "host": "db.example",
                "port": "6432",
                "dbname": "sales",
                "sslmode": "require",
            },
        ),
        ("postgres:///sales?host=/run/postgresql", {"dbname": "sales", "host": "/run/postgresql"}),
        ("jdbc:postgresql://db.example/sales", {"host": "db.example", "port": "5432", "dbname": "sales"}),
        (
            "jdbc:postgresql://one:1,two/sales?user=me&password=a%26b&ssl=true&ApplicationName=job&stringtype=unspecified",
            {
                "host": "one,two",
                "port": "1,5432",
                "dbname": "sales",
                "user": "me",
                "password": "a&b",
                "sslmode": "verify-full",
                "application_name": "job",
            },
        ),
        ("jdbc:postgresql://[::1]:5433/sales", {"host": "::1", "port": "5433", "dbname": "sales"}),
        ("jdbc:postgresql://[::1]/sales", {"host": "::1", "port": "5432", "dbname": "sales"}),
    ],
)
def test_an_address_is_read_as_its_driver_reads_it(url: str, found: dict[str, str]) -> None:
    assert parse_url(url, "2pc-postgresql") == found


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:hunter2@db/sales",
        "jdbc:mysql://db/sales?password=hunter2",
        "db:5432/sales?password=hunter2",
        "postgresql://me:hunter2@db/sales?nonsense=1",
        "jdbc:postgresql://db/sales?password=hunter2&currentSchema=x",
        "jdbc:postgresql://me:hunter2@db/sales",
        "jdbc:postgresql://db/sales?hunter2",
        "postgresql://me:hun/ter2@db/sales",
        "postgresql://me:p@hunter2@db/sales",
        "jdbc:postgresql://me:p/hunter2@db/sales",
        "jdbc:postgresql://db/sales?user=me;password=hunter2",
        "jdbc:postgresql://db/sales?password=a&hunter2=1",
        "postgresql://h/d?pass%77ord=hunter2",
        "jdbc:postgresql://h/d?pass%77ord=hunter2",
        "postgresql://user%3Ahunter2@h/d",
    ],
)
def test_what_is_no_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*url") as refused:
        parse_url(url, "2pc-postgresql")
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
