"""Addresses of MySQL and MariaDB, as programs and JDBC write them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from connector.sql.mysql_url import MysqlAddress, named, parse_mysql_url
from transactional.errors import OptionError


def address(**more: Any) -> MysqlAddress:
    plain: dict[str, Any] = {"host": "db", "port": 3306, "database": "shop", "user": None, "password": None}
    return MysqlAddress(**{**plain, "mode": "preferred", "files": {}, **more})


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("mysql://db/shop", address()),
        ("mariadb://me:a%40b@db:3307/shop", address(port=3307, user="me", password="a@b")),
        (
            "jdbc:mysql://db:3306/shop?user=me&password=a%26b&useSSL=false",
            address(user="me", password="a&b", mode="disabled"),
        ),
        (
            "jdbc:mariadb://[::1]/shop?sslMode=verify-full&serverSslCert=/c",
            address(host="::1", mode="verify-identity", files={"ca": "/c"}),
        ),
        ("mysql://db/shop?ssl-mode=VERIFY_CA&ssl-ca=/ca", address(mode="verify-ca", files={"ca": "/ca"})),
        ("mysql://db/shop?sslMode=REQUIRED", address(mode="required")),
        ("mysql://db/shop?sslCa=/ca", address(mode="verify-identity", files={"ca": "/ca"})),
        ("jdbc:mysql://db/shop?useSSL=true&serverTimezone=UTC&rewriteBatchedStatements=true", address(mode="required")),
        ("jdbc:mysql://db/shop?requireSSL=true&verifyServerCertificate=true", address(mode="verify-ca")),
        ("mysql://db", address(database="")),
    ],
)
def test_an_address_is_read_as_its_driver_reads_it(url: str, found: MysqlAddress) -> None:
    assert parse_mysql_url(url, "2pc-mysql") == found


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db/shop",
        "mysql://me:hunter2@db:port/shop",
        "mysql://me:hunter2@one,two/shop",
        "mysql://me:hunter2@db:0/shop",
        "mysql://me:hunter2@/shop",
        "mysql://me:hun@ter2@db/shop/x@y",
        "mysql://db/shop?password=hunter2&sslMode=SOMETIMES",
        "mysql://db/shop?password=hunter2&useSSL=1",
        "mysql://db/shop?password=hunter2&useSSL=false&sslCa=/ca",
        "mysql://db/shop?password=hunter2&allowLoadLocalInfile=true",
        "mysql://db/shop?password=hunter2&x",
    ],
)
def test_an_address_that_can_not_be_read_is_not_quoted(url: str) -> None:
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*url") as refused:
        parse_mysql_url(url, "2pc-mysql")
    assert "hun" not in str(refused.value)


def test_no_password_is_shown() -> None:
    assert "hunter2" not in repr(parse_mysql_url("mysql://me:hunter2@db/shop", "2pc-mysql"))


def test_tls_goes_as_far_as_is_asked(tmp_path: Path) -> None:
    assert address().tls("x") is None
    assert address(mode="disabled").tls("x") is None
    required, identity = address(mode="required").tls("x"), address(mode="verify-identity").tls("x")
    assert required is not None
    assert identity is not None
    assert (required.verify_mode, required.check_hostname) == (ssl.CERT_NONE, False)
    assert (identity.verify_mode, identity.check_hostname) == (ssl.CERT_REQUIRED, True)
    with pytest.raises(OptionError, match=rf"INVALID_OPTION.*{tmp_path}/ca"):
        address(mode="verify-ca", files={"ca": f"{tmp_path}/ca"}).tls("x")


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("orders", ("shop", "orders")),
        ("other.orders", ("other", "orders")),
        ("`my orders`", ("shop", "my orders")),
        ("`a.b`.`c``d`", ("a.b", "c`d")),
    ],
)
def test_a_table_is_named_as_statements_name_it(table: str, found: tuple[str, str]) -> None:
    assert named(table, "shop") == found
