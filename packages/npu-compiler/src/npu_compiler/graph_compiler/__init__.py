"""Compilation of a captured graph: partitioning, building, verification and reports."""
