"""Open transactions, as the brokers see them and as journals do: who holds readers back, and what may be done about it."""
