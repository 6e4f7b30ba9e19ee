"""The only code that knows Spark."""
