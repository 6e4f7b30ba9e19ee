"""Plans which offsets the next micro-batch reads: applies limits, adds barriers, finds lost rows."""
