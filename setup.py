"""The compiled helper of the data plane; all else is in setup.cfg and pyproject.toml, where extensions are experimental."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "connector.kafka.native._columns",
            ["connector/kafka/native/columns.c"],
            optional=True,  # Without a C compiler the source takes confluent-kafka's objects.
            py_limited_api=True,
        )
    ]
)
