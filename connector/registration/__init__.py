"""Register our formats in the session of a user's program, and make ``start()`` check our sinks."""
