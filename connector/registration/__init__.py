"""What a user's program calls before its queries: its session gets our formats, and ``start()`` checks our sinks."""
