"""The data plane: Arrow to and from librdkafka, with no Python object per row.

`library` has the C functions of the librdkafka that confluent-kafka has loaded, `rows` the addresses of Arrow's rows,
`producer` a producer of such rows. Where these can't be used (another layout of the library, Python callbacks in the settings,
headers), confluent-kafka's own objects do the same work: the reference, and the fallback.
"""
