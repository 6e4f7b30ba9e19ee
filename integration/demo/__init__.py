"""``make demo``: real flights through an exactly-once query that is killed again and again."""
