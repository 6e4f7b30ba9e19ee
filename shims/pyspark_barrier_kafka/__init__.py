"""PySpark finds the format ``barrier-kafka`` here, without a registration call."""

from connector.registration.default_source import default_source

DefaultSource = default_source("barrier-kafka")
