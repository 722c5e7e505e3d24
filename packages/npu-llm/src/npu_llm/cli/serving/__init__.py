"""The server's command and the load test of a running server."""
