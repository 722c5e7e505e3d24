"""The command that serves models, and those that talk to a server."""
