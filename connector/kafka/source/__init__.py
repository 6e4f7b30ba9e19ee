"""The source `barrier-kafka`: `data_source` is what Spark registers; `stream_reader` and `batch_reader` are its readers."""
