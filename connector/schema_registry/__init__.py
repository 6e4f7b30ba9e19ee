"""Decode and encode values in the Schema Registry's wire format.

Users call the functions of `columns`, `encode` and `dead_letters`.
"""
