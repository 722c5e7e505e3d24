"""The command npu-llm."""

from npu_llm.cli.main import main

__all__ = ["main"]
