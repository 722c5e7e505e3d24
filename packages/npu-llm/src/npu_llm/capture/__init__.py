"""Tracing: from a transformers model to the graph of one step."""
