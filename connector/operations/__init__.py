"""Operations on a whole query: graceful stop, recovery before a start, supervision, signals.

``recovery`` ends the unfinished transactions of a query that is not running: after it has ended, or before it starts.
``supervision`` is the loop that restarts a query; ``supervised_query`` starts and stops the query in the user's program.
``stopping`` asks a running query for its final checkpoint.
"""
