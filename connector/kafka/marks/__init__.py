"""Marks: records that say where a query's checkpoints end in its output topic.

Other queries use them to read whole checkpoints.
"""
