"""Reads the rows of a range of offsets with librdkafka, through C or through Python objects."""
