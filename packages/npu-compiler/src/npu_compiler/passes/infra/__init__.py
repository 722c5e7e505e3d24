"""Machinery of passes: their base class, and patterns with the frame of fusions."""
