"""Sinks for relational databases: tasks stage rows, and one database transaction moves a checkpoint's rows into the table."""
