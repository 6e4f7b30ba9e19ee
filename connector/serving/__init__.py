"""A read-only web page about queries, and their metrics. The data, even of dead queries, comes from journals and brokers."""
