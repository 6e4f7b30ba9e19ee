"""Code that the source and the sink share: the client configuration, security, tokens, and requests to a cluster."""
