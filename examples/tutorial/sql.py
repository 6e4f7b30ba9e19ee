"""Run a query in the tutorial's PostgreSQL: ``python sql.py STATEMENT``."""

import sys

import psycopg

from settings import DATABASE

with psycopg.connect(DATABASE) as database:
    for row in database.execute(sys.argv[1]).fetchall():
        print(*row, sep=" | ")
