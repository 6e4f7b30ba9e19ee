"""Faults of real clusters: brokers that pause, die and restart while a query commits."""
