"""Marks: where the checkpoints of one query end in a topic, for readers that want whole checkpoints."""
