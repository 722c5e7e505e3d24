"""Subcommands of npu-ops that run a program under tools, monitor a process, or replay calls."""
