from __future__ import annotations

import subprocess
import sys

import pytest

from connector.kafka.rows import arrow_schema, spark_schema


@pytest.mark.parametrize("headers", [False, True])
def test_the_arrow_schema_is_what_spark_makes_of_its_own(headers: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assert arrow_schema(headers).equals(to_arrow_schema(spark_schema(headers), timezone="UTC"))


def test_the_source_is_imported_without_clients_or_arrow() -> None:
    program = (
        "import sys, connector.kafka.source, connector.kafka.reader\n"
        "print([m for m in ('confluent_kafka', 'kafka', 'pyarrow', 'pandas', 'numpy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
