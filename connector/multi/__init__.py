"""The format ``2pc-multi``: several sinks that share one commit decision."""
