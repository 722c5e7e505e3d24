"""Compares programs with torch: what torch computes for a few tokens, and the verdict."""
