"""Bugs of a line each, planted one at a time into a copy of the product: does the quick suite find them? ``make mutants``.

``planted/<room>.patch`` holds them as data. A bug begins with what it breaks, then says where it is and who should find it,
then the lines as a patch has them, without line numbers::

    ## A sweep takes committed files whose folder is escaped in the log
    file: connector/delta/delta_log.py
    found by: tests/connector/delta/test_escaped_partitions.py::test_each_value_is_read_back
    -            past.added.add(unquote(action["add"]["path"]))
    +            past.added.add(action["add"]["path"])

Lines that begin with a space are context: they make the place unique. Instead of tests or their files, ``found by`` says
``equivalent:`` and why no test can see the bug, or ``integration:`` and the test that does. Those are listed, not run.
"""
