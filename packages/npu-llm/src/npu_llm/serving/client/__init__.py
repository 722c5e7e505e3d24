"""Talks to a server of OpenAI's interface, ours or another, with Python's own HTTP."""
