"""Entry point of `python -m npu_profiler`."""

import sys

from npu_profiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
