"""Savepoints: take one of a query from outside, restore it at a new location, dispose of it."""
