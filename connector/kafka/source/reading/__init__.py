"""The rows of a range of offsets, through librdkafka in C or in Python."""
