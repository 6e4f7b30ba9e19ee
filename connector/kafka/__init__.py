"""The Kafka source `barrier-kafka` and the Kafka sink `2pc-kafka`, which share one client configuration."""
