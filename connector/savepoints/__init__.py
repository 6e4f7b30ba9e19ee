"""Savepoints of a query: taken from outside, restored at a new location, disposed of."""
