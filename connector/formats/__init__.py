"""Formats by their names: those of this package, one table, and those of users. It knows neither Spark nor a store."""
