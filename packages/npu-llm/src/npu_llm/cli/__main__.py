"""`python -m npu_llm.cli`, the same as npu-llm."""

import sys

from npu_llm.cli import main

sys.exit(main())
