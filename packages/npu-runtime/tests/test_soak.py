"""A short run of the soak, and how it judges (load/soak.py); `nox -s soak` runs it for long."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

import forked_python

LOAD = Path(__file__).parent / "load"

# Its processes are given their driver, and so cover sim in every run.
pytestmark = pytest.mark.driver("openvino", "its processes use both drivers already")


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(LOAD)
    spec = importlib.util.spec_from_file_location("soak", LOAD / "soak.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("driver", [pytest.param("sim", marks=pytest.mark.long), "openvino"])
def test_a_short_soak_is_clean(driver):
    command = [sys.executable, str(LOAD / "soak.py"), "--minutes=0.05", "--operations=100"]
    variables = os.environ | {"NPU_DRIVER": driver, "NPU_DEVICE": ""}
    done = forked_python.run(command, env=variables, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["driver"] == driver
    assert result["too_much"] == []
    assert result["rounds"] >= 1


@pytest.mark.parametrize(
    "name, step", [("rss_mib", 1.0), ("files", 0.05), ("threads", 0.05), ("allocated_bytes", 512.0)]
)
def test_what_grows_is_too_much(soak, name, step):
    steady = {
        "rss_mib": 400.0,
        "files": 10,
        "threads": 40,
        "allocated_bytes": 0,
        "reserved_mib": 5.0,
    }
    samples = [
        soak.Sample(seconds=turn * 10.0, rounds=turn, **steady | {name: steady[name] + turn * step})
        for turn in range(100)
    ]
    assert soak.verdict(samples)["too_much"] == [name]
    assert soak.growth(samples, name) == pytest.approx(99 * step)


def test_noise_is_no_growth(soak):
    samples = [
        soak.Sample(turn * 10.0, turn, 400.0 + 20 * (turn % 2), 10, 40, 0, 5.0)
        for turn in range(100)
    ]
    assert soak.verdict(samples)["too_much"] == []
