"""The doctor: checks everything that a query needs before it runs, without Spark."""
