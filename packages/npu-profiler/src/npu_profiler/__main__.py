"""Lets `python -m npu_profiler` be the command."""

import sys

from npu_profiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
