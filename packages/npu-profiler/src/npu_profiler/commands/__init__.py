"""The subcommands of `npu-profiler`, each a module with `main(arguments) -> exit code`.

Holds no code; the table of them is in `npu_profiler.cli`.
"""
