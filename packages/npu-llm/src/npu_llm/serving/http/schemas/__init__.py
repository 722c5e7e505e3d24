"""Schemas of requests, one module for each protocol."""
