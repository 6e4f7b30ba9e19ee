"""The sink `2pc-kafka`. Spark registers `kafka_sink`; `end_txn` ends transactions; `readable` waits until rows can be read."""
