"""What lies in a checkpoint location, on any store: files, the journal, Spark's logs and state. Knows no process of Spark's."""
