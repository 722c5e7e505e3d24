"""`npu-compiler check` of a folder, which is quick."""

from __future__ import annotations

import subprocess
import sys

import torch

import npu_compiler

PROGRAM = """
import sys
import npu_command
sys.argv = ["npu-compiler", "check", *sys.argv[1:]]
try:
    npu_command.npu_compiler()
finally:
    assert "torch" not in sys.modules
"""


def test_an_exported_folder_is_checked_and_estimated_without_torch(tmp_path):
    npu_compiler.export(torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),), tmp_path / "m")
    for option, words in (("--rules", "no rule refuses it"), ("--estimate", "lower bound: ")):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "m"), option]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert words in done.stdout
