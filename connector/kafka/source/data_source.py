"""The format ``barrier-kafka``: Spark's Kafka source, with checkpoint barriers between its micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from transactional.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from connector.kafka.source.batch_reader import BarrierKafkaBatchReader
    from connector.kafka.source.read_options import ReadOptions
    from connector.kafka.source.stream_reader import BarrierKafkaStreamReader


class BarrierKafkaDataSource(DataSource):
    """Spark's Kafka source with checkpoint barriers: ``spark.readStream.format("barrier-kafka")``, or ``spark.read``.

    Rows have the columns of Spark's own Kafka source: key, value (binary), topic, partition, offset, timestamp,
    timestampType, and headers if ``includeHeaders`` is true. Only committed rows are read, unless
    ``kafka.isolation.level`` is read_uncommitted. `connector.kafka.source.read_options.READ_OPTIONS` lists the options.

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
        """Check options, brokers and topics, and return the rows' schema. ``load()`` calls this on the driver.

        Raises
        ------
        OptionError
            An option is missing, unknown, forbidden or out of range.
        StoreError
            ``BROKERS_UNREACHABLE`` (raised within 30 s), ``UNKNOWN_TOPIC``.

        Notes
        -----
        Spark does not say here whether the read is a stream or a batch. So `streamReader` and `reader` check the options that
        only one of them accepts, before a row is read.
        """
        from connector.kafka.client.brokers import check_brokers, check_group, check_reader
        from connector.kafka.source.read_options import parse_read_options
        from connector.kafka.source.rows import spark_schema
        from connector.kafka.source.topic_reader import Retries, TopicReader

        options = parse_read_options(self.options)
        config, subscription = options.config, options.subscription
        config.warn_of_ignored()
        config.warn_of_shown()
        check_reader(config)
        admin = check_brokers(config)
        if options.names_group:
            check_group(admin, config, config.settings["group.id"])
        # Patience is for running queries. At load() a user waits, so a topic without a leader should fail soon.
        topics = TopicReader(admin, config, Retries(0), patience=5.0)
        subscription.check(topics.partitions(subscription))
        if options.align is not None:
            from connector.kafka.source.alignment.alignment import Alignment
            from transactional.clock import SystemClock

            Alignment(options, options.align, SystemClock()).check(admin, topics.ids)
        return spark_schema(options.columns)

    def streamReader(self, schema: StructType) -> BarrierKafkaStreamReader:
        """Return the stream reader. Spark calls this once per start of the query, and again when it plans tasks.

        Raises
        ------
        OptionError
            ``FORBIDDEN_OPTION``: the user called ``.schema(...)`` with a schema that differs from the source's.
        ProtocolError
            ``SPARK_TOO_OLD``: PySpark 4.1 is installed.
        """
        from connector.spark.internals import check_stream_limits

        check_stream_limits()
        from connector.kafka.source.read_options import parse_read_options
        from connector.kafka.source.stream_reader import BarrierKafkaStreamReader

        options = parse_read_options(self.options, "stream")
        _check_schema(schema, options)
        return BarrierKafkaStreamReader(options)

    def reader(self, schema: StructType) -> BarrierKafkaBatchReader:
        """Return the batch reader. Spark calls this on the driver, once per planned scan.

        Raises
        ------
        OptionError
            ``FORBIDDEN_OPTION``: the user called ``.schema(...)`` with a schema that differs from the source's.
            ``INVALID_OPTION``: a batch read does not accept the value of an option.
        """
        from connector.kafka.source.batch_reader import BarrierKafkaBatchReader
        from connector.kafka.source.read_options import parse_read_options

        options = parse_read_options(self.options, "batch")
        _check_schema(schema, options)
        return BarrierKafkaBatchReader(options)


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    from connector.kafka.source.rows import spark_schema

    expected = spark_schema(options.columns)
    if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in expected]:
        raise OptionError(
            "FORBIDDEN_OPTION",
            owner="barrier-kafka",
            option=".schema(...)",
            reason=f"its rows always have the schema {expected.simpleString()}, so parse the column value in the query. To "
            "read fewer columns, set the option columns",
            expected=expected.simpleString(),
        )
