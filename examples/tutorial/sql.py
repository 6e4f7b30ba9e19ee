"""Run a query in the tutorial's PostgreSQL: ``python sql.py STATEMENT``."""

import sys

import psycopg

from settings import DATABASE

with psycopg.connect(DATABASE) as database:
    answer = database.execute(sys.argv[1])
    for row in answer.fetchall() if answer.description else ():
        print(*row, sep=" | ")
