"""The format ``2pc-multi``: several sinks under one commit decision."""
