"""The subcommands of `npu-compiler`."""
