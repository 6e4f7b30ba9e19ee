"""Kafka: the source `barrier-kafka` and the sink `2pc-kafka`, which share one client configuration."""
