"""torch.distributed on npu. The collectives run in separate processes, one per rank: ranks/."""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import forked_python
from npu_runtime.errors import InputError
from npu_runtime.torch_integration import distributed

RANKS = Path(__file__).parent / "ranks"

# Its processes are given their driver, and so cover sim in every run.
pytestmark = [
    pytest.mark.driver("openvino", "its processes use both drivers already"),
    pytest.mark.xdist_group("ranks"),
]


def cases(script: str) -> list[str]:
    """Names of the functions that a script marks as cases."""
    return re.findall(r"^@case\ndef (\w+)", (RANKS / script).read_text(), re.MULTILINE)


def run_ranks(
    script: str, size: int, directory: Path, **environment: str
) -> list[tuple[int | None, str]]:
    """Runs a script once per rank; returns the exit code and output of each."""
    processes = [
        forked_python.start(
            [sys.executable, RANKS / script],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": str(size), "DIRECTORY": str(directory)}
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(size)
    ]
    try:
        printed = [process.communicate(timeout=240)[0] for process in processes]
        return [
            (process.returncode, text) for process, text in zip(processes, printed, strict=True)
        ]
    finally:
        for process in processes:
            with process:
                process.kill()


@functools.cache
def outcomes(script: str, size: int, backend: str, debug: str, driver: str) -> list[dict[str, str]]:
    """The outcome of each case on each rank. The cases of a script share their processes."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        output = run_ranks(
            script,
            size,
            directory,
            BACKEND=backend,
            NPU_DRIVER=driver,
            **({"TORCH_DISTRIBUTED_DEBUG": debug} if debug else {}),
        )
        files = [directory / f"rank{rank}.json" for rank in range(size)]
        assert all(code == 0 for code, _ in output), output
        return [json.loads(file.read_text()) for file in files]


def check(
    script: str, case: str, size: int, *, backend: str = "", debug: str = "", driver: str = ""
) -> None:
    for rank, outcome in enumerate(outcomes(script, size, backend, debug, driver)):
        assert outcome[case] == "passed", f"rank {rank} of {size}: {outcome[case]}"


@pytest.mark.parametrize("case", cases("collectives.py"))
def test_two_ranks_get_what_gloo_gives_on_the_cpu(case):
    check("collectives.py", case, 2)


@pytest.mark.long
@pytest.mark.parametrize("case", cases("collectives.py"))
def test_four_ranks_get_what_gloo_gives_on_the_cpu(case):
    check("collectives.py", case, 4, backend="gloo")


@pytest.mark.long
@pytest.mark.parametrize("case", cases("collectives.py"))
def test_gloo_may_touch_memory_that_the_simulated_device_protects(case):
    check("collectives.py", case, 2, driver="sim")


@pytest.mark.long
@pytest.mark.parametrize("case", cases("collectives.py"))
def test_torchs_own_checks_of_every_collective_pass(case):
    check("collectives.py", case, 2, backend="cpu:gloo,npu:gloo", debug="DETAIL")


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", cases("training.py"))
def test_training_equals_the_same_in_one_process(case, size):
    check("training.py", case, size)


def test_torchrun_starts_a_plain_script():
    # The ranks are real processes; torchrun limits their threads to one each.
    done = forked_python.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         RANKS / "launched.py"],
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sum 3.0 ranks 2" in done.stdout


@pytest.mark.parametrize("how", ["exits", "stays away"])
def test_a_rank_that_does_not_come_is_an_error_in_time(how, tmp_path):
    output = run_ranks("dead_rank.py", 2, tmp_path, HOW=how)
    report = tmp_path / "rank0.txt"
    assert output[0][0] == 0, output[0]
    took_s, message = report.read_text().split("\n", 1)
    assert float(took_s) < 4
    assert re.search("timed out|closed|reset", message, re.IGNORECASE), message


def test_npu_has_a_default_backend():
    assert dist.get_default_backend_for_device("npu") == distributed.BACKEND
    assert dist.is_backend_available(distributed.BACKEND)


@pytest.mark.parametrize(
    "backend, chosen, expected",
    [
        ("gloo", {"cpu": "gloo", "cuda": "gloo", "npu": "gloo"},
         {"cpu": "gloo", "npu": "npu_gloo"}),
        ("undefined", {"npu": "npu_gloo"}, {"cpu": "gloo", "npu": "npu_gloo"}),
        ("cpu:gloo,npu:gloo", {"cpu": "gloo", "npu": "gloo"}, {"cpu": "gloo", "npu": "npu_gloo"}),
        ("npu:npu_gloo", {"npu": "npu_gloo"}, {"npu": "npu_gloo"}),
        ("cpu:gloo", {"cpu": "gloo"}, {"cpu": "gloo"}),
        ("npu:vendors_own", {"npu": "vendors_own"}, {"npu": "vendors_own"}),
    ],
)  # fmt: skip
def test_each_way_to_name_the_backend(backend, chosen, expected):
    assert distributed.backends_by_device(backend, chosen) == expected


def test_torch_reads_backend_names_that_way():
    assert dist.BackendConfig("gloo").get_device_backend_map()["npu"] == distributed.BACKEND
    assert dist.BackendConfig("cpu:gloo").get_device_backend_map() == {"cpu": "gloo"}


def test_a_group_without_npu_is_torchs_own(run_python):
    done = run_python(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('cpu:gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "x = torch.ones(2); dist.all_reduce(x); dist.destroy_process_group()\n"
        "import sys; print('npu_runtime._distributed' in sys.modules)"
    )
    assert done.stdout.split() == ["False"]
    assert done.stderr == ""


@pytest.fixture
def alone():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_memory_that_gloo_cannot_read_is_refused():
    backend = dist.group.WORLD._get_backend(torch.device("npu"))
    lazily_negated = torch._neg_view(torch.ones(3, device="npu"))
    with pytest.raises(InputError, match="negated, got layout Strided, dtype Float") as caught:
        backend.broadcast([lazily_negated], dist.BroadcastOptions())
    assert caught.value.code == "collective-layout"


@pytest.mark.usefixtures("alone")
def test_an_output_whose_elements_share_memory_is_refused():
    repeated = torch.ones(3, device="npu").expand(2, 3)
    with pytest.raises(InputError, match=r"got strides \[0, 1\] for shape \[2, 3\]") as caught:
        dist.all_reduce(repeated)
    assert caught.value.code == "collective-layout"


@pytest.mark.usefixtures("alone")
def test_a_refused_collective_leaves_the_group_usable():
    tensor = torch.ones(3, device="npu")
    with pytest.raises(RuntimeError):
        dist.all_gather_single(torch.empty(5, device="npu"), tensor)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1, 1, 1]


def test_options_of_another_backend_are_refused():
    with pytest.raises(InputError, match="got dict") as caught:
        dist.init_process_group(
            "npu:npu_gloo", store=dist.HashStore(), rank=0, world_size=1, pg_options={}
        )
    assert caught.value.code == "collective-options"
