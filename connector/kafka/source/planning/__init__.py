"""From where to where the next micro-batch reads: limits, marks, losses."""
