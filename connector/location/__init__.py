"""Access to a checkpoint location on any store: its files, its journal, Spark's logs and state. Does not import Spark."""
