"""Nox sessions: environments, wheels, and less frequent sessions."""
