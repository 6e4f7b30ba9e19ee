"""The content of a checkpoint location, on any store: files, the journal, Spark's logs and state. Imports no Spark."""
