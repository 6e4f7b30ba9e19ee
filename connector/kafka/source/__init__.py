"""The source `barrier-kafka`: Spark registers `data_source`, whose readers are in `stream_reader` and `batch_reader`."""
