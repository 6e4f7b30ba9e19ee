"""A query that follows the barriers of other queries (``alignOn``)."""
