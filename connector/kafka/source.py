"""The format ``barrier-kafka``: Spark's Kafka source, with checkpoint barriers between its micro-batches."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from connector.kafka.config import SOURCE_FORBIDDEN, ClientConfig, client_config
from connector.kafka.read_options import READ_DEFAULTS, READ_OPTIONS
from transactional.errors import OptionError
from transactional.schedule import Schedule

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from connector.kafka.reader import BarrierKafkaStreamReader
    from connector.options import ParsedOptions

__all__ = ["BarrierKafkaDataSource"]


class BarrierKafkaDataSource(DataSource):
    """``spark.readStream.format("barrier-kafka")``.

    Rows have the columns of Spark's own Kafka source: key, value (binary), topic, partition, offset, timestamp,
    timestampType, and headers where ``includeHeaders`` is true. Only committed rows are read, unless
    ``kafka.isolation.level`` says otherwise. Options: `connector.kafka.read_options.READ_OPTIONS`.

    Examples
    --------
    >>> rows = (
    ...     spark.readStream.format("barrier-kafka")
    ...     .option("kafka.bootstrap.servers", "broker:9092")
    ...     .option("subscribe", "flights")
    ...     .option("startingOffsets", "earliest")
    ...     .load()
    ... )
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "barrier-kafka"

    def schema(self) -> StructType:
        """Check options, brokers and topics, and say what the rows look like. *Driver side, once, at* ``load()``.

        Raises
        ------
        OptionError
            An option is missing, unknown, forbidden or out of range.
        StoreError
            ``BROKERS_UNREACHABLE`` within 30 s, ``UNKNOWN_TOPIC``.
        """
        from connector.kafka.config import check_brokers, check_group, check_reader
        from connector.kafka.rows import spark_schema
        from connector.kafka.subscription import TopicReader

        options, config = self._parsed()
        config.tell_ignored()
        check_reader(config)
        admin = check_brokers(config)
        if "kafka.group.id" in options.passthrough:
            check_group(admin, config, config.settings["group.id"])
        # Patience is for queries that run; a topic that has no leader now is told to who waits at load().
        TopicReader(admin, config, patience=5.0).partitions(_subscription(options))
        return spark_schema(options["includeHeaders"])

    def streamReader(self, schema: StructType) -> BarrierKafkaStreamReader:
        """Make the reader. *Driver's source process, once per start of the query; again in the planning of tasks*.

        Raises
        ------
        OptionError
            ``SCHEMA_IS_FIXED``: the user gave a schema of their own.
        """
        from connector.kafka.reader import BarrierKafkaStreamReader
        from connector.kafka.rows import spark_schema

        options, config = self._parsed()
        expected = spark_schema(options["includeHeaders"])
        if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in expected]:
            raise OptionError(
                "SCHEMA_IS_FIXED",
                f"barrier-kafka has the schema {expected.simpleString()}: leave out .schema(...), and parse the "
                "column value.",
                expected=expected.simpleString(),
            )
        return BarrierKafkaStreamReader(
            config=config,
            subscription=_subscription(options),
            starting=options["startingOffsets"],
            max_offsets=options["maxOffsetsPerTrigger"],
            include_headers=options["includeHeaders"],
            schedule=Schedule(options["barrierInterval"], options["minPauseBetweenCheckpoints"]),
        )

    def _parsed(self) -> tuple[ParsedOptions, ClientConfig]:
        options = READ_OPTIONS.parse(self.options)
        config = client_config(READ_OPTIONS, options, SOURCE_FORBIDDEN, READ_DEFAULTS)
        if "group.id" not in config.settings:
            group = _group_id(config.bootstrap_servers, options["subscribe"])
            config = config.with_setting("group.id", group)
        return options, config


def _subscription(options: ParsedOptions) -> Any:
    from connector.kafka.subscription import Subscription

    return Subscription(options["subscribe"])


def _group_id(servers: str, topics: tuple[str, ...]) -> str:
    """A name that stays the same from run to run; two queries that read the same topics share it."""
    told = "\n".join([*sorted(part.strip() for part in servers.split(",")), *topics])
    return f"barrier-kafka-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
