"""Operations on a query as a whole: graceful stop, recovery before a start, supervision, signals.

``recovery`` is the one function that a start may need before it, and an end after it; ``supervision`` the loop around a
query's lives, of which ``supervised_query`` runs each in the user's program. ``stopping`` asks a running query for its
final checkpoint.
"""
