"""Find a format by its name: this package's formats and users' formats. Imports neither Spark nor a store's client."""
