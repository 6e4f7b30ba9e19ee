"""Values in the Schema Registry's wire format: `columns` has what users call, `decode_avro` and `decode_json`."""
