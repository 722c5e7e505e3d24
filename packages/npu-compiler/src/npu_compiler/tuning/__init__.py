"""Measured choices: which way of compiling a graph is fastest on this device, kept for later."""
