"""Plugin defects that cause wrong results, and their workarounds before compilation.

Each module is one entry: where the defect occurs, the rewrite or options that avoid it, a
reproducer without torch and this package's compiler, and the report for upstream. `table` lists the
entries.
"""
