"""The subcommands of `npu-profiler`, each a module with `main(arguments) -> exit code`."""
