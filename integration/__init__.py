"""Real Kafka, Spark and stores as child processes: integration tests, the demo and the benchmarks.

Nothing in here is part of the wheel.
"""

from pathlib import Path

__all__ = ["ROOT"]

ROOT = Path(__file__).parent.parent
"""The folder of the project."""
