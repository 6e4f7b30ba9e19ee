"""Queries, checkpoints and transactions as people see them: in words, for the commands and for the page."""
