"""Plans the offsets that the next micro-batch reads: limits, barriers, losses."""
