"""Queries of a trace; each returns rows of plain data."""
