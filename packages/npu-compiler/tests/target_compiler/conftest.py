"""A library with the interface of Intel's NPU compiler, which answers as a test asks it to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory):
    """Compiles the library: option FAKE of a request says what it does."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("fake") / "libfake_vcl.so"
    source = Path(__file__).with_name("fake_vcl.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return library


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache folder, and no compiler of this machine."""
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NPU_TARGET_COMPILER", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("npu_compiler.target_compiler.sources._FOLDERS", ())
    return tmp_path / "cache"


@pytest.fixture
def installed(fake_library, home, monkeypatch):
    """The library as the compiler that the user named."""
    monkeypatch.setenv("NPU_TARGET_COMPILER", str(fake_library))
    return home


@pytest.fixture
def model():
    """A sum of an input and a constant, called the_sum."""
    x = ops.parameter([2, 3], ov.Type.f16, name="x")
    total = ops.add(x, ops.constant(np.ones((2, 3), np.float16)))
    total.set_friendly_name("the_sum")
    return ov.Model([total], [x], "little")
