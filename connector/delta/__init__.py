"""Delta tables: the format ``2pc-delta``, and idempotent upserts through Delta's own engine."""

from connector.delta.merge import idempotent_merge

__all__ = ["idempotent_merge"]
