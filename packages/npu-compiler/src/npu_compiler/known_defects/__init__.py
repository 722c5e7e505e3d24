"""Defects of plugins that give wrong numbers, and what is done about each before compiling.

One module an entry: where it occurs, the rewrite or options that avoid it, a reproducer that needs
neither torch nor this package's compiler, and the report for upstream. `table` lists them.
"""
