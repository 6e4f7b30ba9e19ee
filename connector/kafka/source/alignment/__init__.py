"""Lets a query follow the barriers of other queries (option ``alignOn``)."""
