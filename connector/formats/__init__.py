"""Find formats by name: this package's formats and the users' own. Imports neither Spark nor a store's client."""
