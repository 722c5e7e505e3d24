"""Checkpoints: finding, validating and reading a model's files, and estimating its memory."""
