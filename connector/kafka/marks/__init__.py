"""Marks: records of where a query's checkpoints end in its output topic, for queries that read whole checkpoints."""
