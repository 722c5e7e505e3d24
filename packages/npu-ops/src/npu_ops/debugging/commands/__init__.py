"""The subcommands of npu-ops that run a program under tools, watch one, or repeat its calls."""
