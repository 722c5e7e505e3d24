"""The subcommands of npu-runtime."""
