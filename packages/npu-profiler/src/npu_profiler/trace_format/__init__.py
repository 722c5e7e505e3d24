"""Trace format: the parts of a trace, their rows, and the Chrome trace JSON writer."""
