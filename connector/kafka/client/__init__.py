"""The parts that source and sink share: one client configuration, security, tokens, and the questions to a cluster."""
