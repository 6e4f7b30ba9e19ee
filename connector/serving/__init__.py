"""A read-only web page about queries, and their metrics. All data comes from journals and brokers, even for dead queries."""
