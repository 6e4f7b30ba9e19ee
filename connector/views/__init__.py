"""Describe queries, checkpoints and transactions in words, for the commands and the web page."""
