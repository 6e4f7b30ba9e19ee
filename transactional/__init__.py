"""The checkpoint protocol: two-phase-commit sinks, journal, coordinator and recovery. Knows neither Spark nor Kafka."""
