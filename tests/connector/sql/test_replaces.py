"""Which sinks say that a row replaces an earlier one of its key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connector.multi.sink import MultiSink
from connector.sql.mysql_sink import MysqlSink
from connector.sql.postgresql_sink import PostgresqlSink
from connector.sql.staged_sink import StagedSqlSink
from transactional.sink import Options

SCHEMA = pa.schema([("id", pa.int64()), ("route", pa.string())])
POSTGRESQL = {"url": "postgresql://db/x", "dbtable": "t"}
MYSQL = {"url": "mysql://db/x", "dbtable": "t"}


@pytest.mark.parametrize(("kind", "options"), [(PostgresqlSink, POSTGRESQL), (MysqlSink, MYSQL)])
def test_rows_replace_others_only_with_an_upsert_key(kind: type[StagedSqlSink], options: dict[str, str]) -> None:
    assert not kind(Options(options), SCHEMA).replacesRows
    assert kind(Options({**options, "upsertKey": "id"}), SCHEMA).replacesRows


def test_rows_of_several_sinks_replace_others_if_those_of_one_do() -> None:
    both = {"sinks": "a,b", "routeColumn": "route", "transactionalIdPrefix": "p"}
    both |= {
        f"{name}.{key}": value for name in "ab" for key, value in {"format": "2pc-postgresql", **POSTGRESQL}.items()
    }
    both["b.dbtable"] = "u"
    assert not MultiSink(Options(both), SCHEMA).replacesRows
    assert MultiSink(Options({**both, "b.upsertKey": "id"}), SCHEMA).replacesRows
