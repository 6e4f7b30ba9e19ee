"""Find formats by name: this package's formats, and users' own. Imports neither Spark nor a store's client."""
