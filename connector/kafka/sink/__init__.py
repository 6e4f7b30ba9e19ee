"""The sink `2pc-kafka`: `kafka_sink` implements it, `end_txn` ends transactions, `readable` waits for visible rows."""
