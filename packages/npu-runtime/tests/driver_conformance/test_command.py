"""The command, in separate processes: it forks, and this process may have opened a device."""

import json
import subprocess
import sys

import pytest

import forked_python
from npu_runtime.driver_conformance.driver_table import FIELDS


def conformance(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "npu_runtime.driver_conformance", *arguments]
    return forked_python.run(command, timeout=300)


@pytest.mark.parametrize(
    "driver, unsupported",
    [("openvino", {"host_access_begin", "host_access_end"}), ("sim", set())],
)
def test_the_built_in_drivers_pass_every_check(driver, unsupported):
    done = conformance("--driver", driver, "--json")
    assert done.stderr == ""
    report = json.loads(done.stdout)
    bad = [item for item in report["checks"] if item["outcome"] in ("fail", "blocked")]
    assert bad == []
    left_out = {item["field"] for item in report["checks"] if item["outcome"] == "unsupported"}
    assert left_out == unsupported
    assert {item["field"] for item in report["checks"]} == set(FIELDS)
    assert report["passed"] is True
    assert done.returncode == 0


def test_a_pattern_picks_checks_and_the_table_shows_them():
    done = conformance("--driver", "openvino", "-k", "program_property")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("program_property  cuts at the bytes it was given")
    assert all(line.endswith("pass") for line in lines[:3])
    assert lines[-1] == "driver openvino: 3 checks of 1 field of npu_driver: 3 pass"


def test_an_absent_device_fails_with_the_drivers_sentence():
    done = conformance("--driver", "openvino", "--device", "NPU.9", "-k", "*opens_a_device*")
    assert done.returncode == 1
    assert "open" in done.stdout
    assert "NPU_ERROR_ABSENT: NPU_DEVICE=NPU.9 was requested" in done.stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--driver", "nope"), "driver must be one of openvino, sim, got 'nope'"),
        (("--driver", "sim", "-k", "nothing_is_called_so"), "no check matches"),
    ],
)
def test_nothing_to_run_ends_with_2_and_one_line(arguments, said):
    done = conformance(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert said in done.stderr
