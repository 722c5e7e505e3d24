"""Memory that is available, on machines made of files and on this one."""

import mmap

import pytest

from npu_command.host_memory import available_bytes


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def machine(tmp_path):
    put(tmp_path, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    return tmp_path


def test_available_memory_of_the_system(machine):
    assert available_bytes(machine) == 8000 * 1024


def test_available_memory_under_a_bound_of_addresses(machine):
    lines = "Max cpu time  unlimited  unlimited  seconds\nMax address space  {}  unlimited  bytes\n"
    put(machine, "proc/self/status", "VmPeak:  9999 kB\nVmSize:  3000 kB\n")
    put(machine, "proc/self/limits", lines.format("unlimited"))
    assert available_bytes(machine) == 8000 * 1024
    put(machine, "proc/self/limits", lines.format(5000 * 1024))
    assert available_bytes(machine) == 2000 * 1024
    put(machine, "proc/self/limits", lines.format(2000 * 1024))
    assert available_bytes(machine) == 0


def test_available_memory_of_a_version_2_group_and_those_above(machine):
    put(machine, "proc/self/cgroup", "0::/user/job\n")
    put(machine, "sys/fs/cgroup/user/memory.max", "5000000\n")
    put(machine, "sys/fs/cgroup/user/memory.current", "4000000\n")
    put(machine, "sys/fs/cgroup/user/memory.stat", "anon 1\ninactive_file 500000\n")
    put(machine, "sys/fs/cgroup/user/job/memory.max", "max\n")
    put(machine, "sys/fs/cgroup/user/job/memory.current", "1000\n")
    assert available_bytes(machine) == 1_500_000


def test_available_memory_of_a_version_1_group(machine):
    put(machine, "proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    # In a container the group's files are at the top.
    put(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n")
    put(machine, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n")
    assert available_bytes(machine) == 2_000_000


def test_this_machine_has_memory():
    assert 0 < available_bytes() < 1 << 60


def test_available_bytes_falls_by_pages_that_are_touched():
    before = available_bytes()
    with mmap.mmap(-1, 512 << 20) as pages:
        pages[:] = b"x" * len(pages)
        during = available_bytes()
    assert before - during > 256 << 20
