"""Runs the selected cases: supervisor, child processes, and checks."""
