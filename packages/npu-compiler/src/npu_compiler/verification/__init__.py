"""Verification: compares results of programs with torch's before they are returned."""
