"""Compares programs with torch: reference results for a few tokens, and the verdict."""
