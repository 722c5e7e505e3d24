"""Nox sessions: their environments, the wheels that they install, and the rarer of them."""
