"""Sinks for relational databases: rows are staged by tasks, and moved into the table by one database transaction."""
