"""Lets `python -m npu_profiler` be the command. The command itself is in `cli.py`."""

import sys

from npu_profiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
