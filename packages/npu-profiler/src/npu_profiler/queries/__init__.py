"""Questions about a trace, each answered as rows of plain data.

Holds no code: `launches.py` says who launched which program, `intervals.py` what a device did when,
`ops.py`, `programs.py`, `layers.py` and `origins.py` answer by what ran and by where it came from,
`steps.py` finds a program's steps, `overview.py` the figures above all tables, `memory.py` who held
memory. How rows look on a screen or in a file is in `npu_profiler.reports.tables`.
"""
