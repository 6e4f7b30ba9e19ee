"""The checks of ``barrier doctor``: everything that a query needs, checked before it runs and without Spark."""
