"""The command npu-llm."""

from npu_llm.cli.main import COMMAND, main

__all__ = ["COMMAND", "main"]
