"""A read-only web page about queries, and their metrics. The data comes from journals and brokers, not from drivers."""
