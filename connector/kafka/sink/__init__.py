"""The sink `2pc-kafka`: `kafka_sink` is what Spark registers; `end_txn` commits and aborts, `readable` waits for rows."""
