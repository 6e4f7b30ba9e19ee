"""Real Kafka, Spark and stores as child processes: integration tests, the demo and the benchmarks.

Nothing in here is part of the wheel.
"""
