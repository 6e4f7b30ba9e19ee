"""A read-only page over queries, and their metrics: from journals and brokers alone, so also of queries that are dead."""
