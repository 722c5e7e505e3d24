"""The fields and bounds of requests, one module for each protocol."""
