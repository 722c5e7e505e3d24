"""One core of OpenVINO for the process, and Ctrl-C after models came and went."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from torch import nn

import npu_compiler
from npu_compiler import openvino_core as module
from npu_compiler.openvino_core import openvino_core

# Two models of OpenVINO's alone and between them one of npu_runtime's; the first goes first, and
# the other in a thread.
_CHILD = """
import gc, signal, sys, threading, time
import numpy, torch
import npu_compiler

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
x = numpy.ones((2, 4), numpy.float32)
models = []
for device in ("CPU", None, "CPU"):
    models.append(npu_compiler.load(sys.argv[1], device=device))
    models[-1](x)
del models[0]
gc.collect()

def let_go():
    models.clear()
    gc.collect()

thread = threading.Thread(target=let_go)
thread.start()
thread.join()
try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_all_threads_get_the_same_core(monkeypatch):
    made = []

    class Core:
        def __init__(self):
            made.append(self)

    monkeypatch.setattr(module, "_core", None)
    monkeypatch.setattr(module.ov, "Core", Core)
    barrier = Barrier(4)

    def get(_):
        barrier.wait()
        return openvino_core()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(get, range(4))) == set(made)
    assert len(made) == 1


def test_interrupt_reaches_python_after_models_came_and_went(tmp_path):
    folder = npu_compiler.export(nn.Linear(4, 3).eval(), (torch.ones(2, 4),), tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
