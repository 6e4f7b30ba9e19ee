"""Operations on a query as a whole: graceful stop, recovery before a start, supervision, signals.

``recovery`` is the one function that a start may need before it, and an end after it; ``supervision`` the one loop around a
query's lives. ``supervised_query`` defines a life of a query in the user's program, ``driver_program`` one of a
program of ``barrier run``. ``stopping`` asks a running query for its final checkpoint.
"""
