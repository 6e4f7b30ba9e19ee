"""The code that Spark calls, and the code that uses Spark's internal names."""
