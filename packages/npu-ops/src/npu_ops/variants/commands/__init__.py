"""Subcommands of npu-ops that explain or measure a call."""
