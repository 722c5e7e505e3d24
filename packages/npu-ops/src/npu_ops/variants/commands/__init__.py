"""The subcommands of npu-ops that ask about one call, or measure it."""
