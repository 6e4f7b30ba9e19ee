"""Kafka: the source `barrier-kafka` and the sink `2pc-kafka`, over one client configuration."""
