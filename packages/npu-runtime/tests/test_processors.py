"""Processors that a process may use, on machines that are folders here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_command.processors import read_processors


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    return root


def cpu(number: int, siblings: str, **files: str) -> dict[str, str]:
    place = f"devices/system/cpu/cpu{number}"
    found = {f"{place}/topology/thread_siblings_list": siblings}
    return found | {f"{place}/{name}": text for name, text in files.items()}


def test_processors_of_one_kind(tmp_path):
    found = read_processors(tmp_path, range(4))
    assert (found.usable, found.cores, found.fast, found.counts) == (4, 4, 4, [4])
    assert str(found) == "4 processors of one kind"


def test_two_processors_of_a_core_are_one_core(tmp_path):
    files = cpu(0, "0-1") | cpu(1, "0-1") | cpu(2, "2-3") | cpu(3, "2-3")
    found = read_processors(machine(tmp_path, files), range(4))
    assert (found.usable, found.cores, found.counts) == (4, 2, [4, 2])


def test_three_kinds_of_cores_of_intel(tmp_path):
    """As in a Core Ultra: fast cores, slow ones, and slow ones without a third cache."""
    files = {"devices/cpu_core/cpus": "0-1", "devices/cpu_atom/cpus": "2-5"}
    for number in range(4):
        place = f"devices/system/cpu/cpu{number}/cache/index3/size"
        files[place] = "12288K"
    found = read_processors(machine(tmp_path, files), range(6))
    assert (found.usable, found.cores, found.fast, found.counts) == (6, 6, 2, [6, 2])
    assert str(found) == "6 processors, 6 cores, 2 of them fast"


def test_two_kinds_of_cores_of_arm(tmp_path):
    files = {
        f"devices/system/cpu/cpu{number}/cpu_capacity": "1024" if number > 1 else "380"
        for number in range(6)
    }
    assert read_processors(machine(tmp_path, files), range(6)).counts == [6, 4]


@pytest.mark.parametrize(
    "files, usable",
    [
        ({"fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({"fs/cgroup/cpu.max": "max 100000"}, 4),
        (
            {
                "fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
                "fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            {
                "fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4,
        ),
    ],
)
def test_a_quota_bounds_them(tmp_path, files, usable):
    assert read_processors(machine(tmp_path, files), range(4)).usable == usable


def test_a_limit_holds_for_torch_before_and_after_it_is_imported():
    script = (
        "from npu_command.processors import limit_threads\n"
        "limit_threads(1)\nimport torch\nbefore = torch.get_num_threads()\n"
        "limit_threads(3)\nprint(before, torch.get_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.split() == ["1", "3"]
