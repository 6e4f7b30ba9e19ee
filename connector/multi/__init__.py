"""Several sinks under one decision: `2pc-multi`."""
