"""Moves rows between Arrow and librdkafka, without a Python object for each row.

`library` has the C functions of the librdkafka that confluent-kafka has loaded. `rows` finds the addresses of rows in
Arrow's buffers, and `producer` sends these rows. If these modules can't be used (a different layout of the library,
Python callbacks in the settings, headers), confluent-kafka's own objects do the same work. These objects are the
reference implementation and the fallback.
"""
