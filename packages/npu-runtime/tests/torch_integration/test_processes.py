"""Tensors between processes, and forks.

Each case is a separate program, because its use of the device before it starts a process matters,
and spawn imports the main module again.
"""

import sys
import textwrap
from pathlib import Path

import pytest

import forked_python

HEADER = """
import os, pickle, sys, warnings, torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, IterableDataset
"""


@pytest.fixture
def run(tmp_path: Path):
    """Runs a program; gives the lines it printed. One that hangs is an error."""

    def run(code: str, *arguments: str, timeout_s: float = 120) -> list[str]:
        script = tmp_path / "program.py"
        script.write_text(HEADER + textwrap.dedent(code))
        done = forked_python.run([sys.executable, str(script), *arguments], timeout=timeout_s)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


SENDS = """
def work(inbox, outbox):
    for value in iter(inbox.get, None):
        outbox.put((str(value.device), value * 2))

if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    inbox, outbox = context.Queue(), context.Queue()
    worker = context.Process(target=work, args=(inbox, outbox))
    worker.start()
    for value in (torch.arange(6, device="npu").reshape(2, 3).t(), torch.ones(0, device="npu")):
        inbox.put(value)
        place, twice = outbox.get(timeout=60)
        print(place, twice.device, torch.equal(twice, value * 2), tuple(twice.stride()))
    inbox.put(None)
    worker.join(60)
    print(worker.exitcode)
"""


# With fork, the parent first uses the device after it has forked.
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_queues_take_tensors_both_ways(run, method):
    assert run(SENDS, method) == [
        "npu:0 npu:0 True (1, 3)",
        "npu:0 npu:0 True (1,)",
        "0",
    ]


def test_every_layout_arrives(run):
    lines = run("""
        from multiprocessing.reduction import ForkingPickler

        dense = torch.eye(3, device="npu")
        complex_ = torch.tensor([1 + 2j], device="npu")
        warnings.simplefilter("ignore")
        for value in (dense.to_sparse(), dense.to_sparse_csr(), complex_.conj(), dense[1:, ::2]):
            twin = pickle.loads(ForkingPickler.dumps(value))
            print(twin.device, twin.layout == value.layout, twin.is_conj() == value.is_conj(),
                  torch.equal(twin.to_dense(), value.to_dense()))
    """)
    assert lines == ["npu:0 True True True"] * 4


def test_modules_parameters_storages_and_shared_memory_go_to_a_pool(run):
    lines = run("""
        def forward(model, x):
            with torch.no_grad():
                return model(x)

        def look(base, view, parameter, frozen, storage):
            view[0] = 70
            return (base[2].item(), type(parameter).__name__, parameter.requires_grad,
                    frozen.requires_grad, storage.device.type, storage.tolist())

        if __name__ == "__main__":
            model = torch.nn.Linear(4, 2).to("npu").share_memory()
            x = torch.randn(3, 4, device="npu")
            base = torch.arange(4, device="npu")
            parameter = torch.nn.Parameter(torch.ones(2, device="npu"))
            frozen = torch.nn.Parameter(torch.ones(2, device="npu"), requires_grad=False)
            storage = torch.arange(3, dtype=torch.uint8, device="npu").untyped_storage()
            with mp.get_context("spawn").Pool(1) as pool:
                results = pool.starmap(forward, [(model, x)] * 3)
                print(*pool.apply(look, (base, base[2:], parameter, frozen, storage)))
            print(base.tolist())
            print([torch.allclose(r, model(x)) for r in results], results[0].device)
    """)
    assert lines == [
        "70 Parameter True False npu [0, 1, 2]",
        "[0, 1, 2, 3]",
        "[True, True, True] npu:0",
    ]


def test_what_autograd_computed_is_not_sent(run):
    lines = run("""
        from multiprocessing.reduction import ForkingPickler

        try:
            ForkingPickler.dumps(torch.ones(2, device="npu", requires_grad=True) * 2)
        except ValueError as error:
            print(type(error).__name__, error.code, "detach" in str(error))
    """)
    assert lines == ["InputError send-non-leaf True"]


FORKS = """
def send(outbox, x):
    outbox.send(x)

WAYS = {
    "new": lambda outbox, x: torch.ones(2, device="npu"),
    "move": lambda outbox, x: torch.ones(2).to("npu"),
    "wait": lambda outbox, x: torch.npu.synchronize(),
    "seed": lambda outbox, x: torch.npu.manual_seed(1),
    "compute": lambda outbox, x: x + 1,
    "read": lambda outbox, x: x.tolist(),
    "send": send,
}

def work(way, outbox):
    try:
        WAYS[way](outbox, x)
        outbox.send("no error")
    except RuntimeError as error:
        outbox.send(str(error))

if __name__ == "__main__":
    x = torch.ones(2, device="npu")
    assert not torch.npu._is_in_bad_fork()
    context = mp.get_context("fork")
    for way in WAYS:
        here, outbox = context.Pipe()
        worker = context.Process(target=work, args=(way, outbox))
        worker.start()
        print(way)
        print(here.recv())
        worker.join(60)
        print(worker.exitcode, torch.npu._is_in_bad_fork(), x.sum().item())
"""


def test_a_child_forked_after_use_is_told_to_spawn(run):
    lines = run(FORKS)
    assert lines[::3] == ["new", "move", "wait", "seed", "compute", "read", "send"]
    assert all("'spawn'" in said for said in lines[1::3]), lines
    assert all(said.endswith("[forked-after-use]") for said in lines[1::3]), lines
    assert lines[2::3] == ["0 False 2.0"] * 7


def test_a_child_forked_after_use_may_use_the_cpu_and_seed_it(run):
    lines = run("""
        if __name__ == "__main__":
            torch.ones(2, device="npu")
            child = os.fork()
            if child == 0:
                torch.manual_seed(3)
                good = torch.npu._is_in_bad_fork() and not torch.npu.is_initialized()
                os._exit(0 if good and torch.rand(2).numel() == 2 else 1)
            print(os.waitpid(child, 0)[1])
    """)
    assert lines == ["0"]


def test_asking_whether_there_is_a_device_is_no_use_of_it(run, device_count):
    lines = run("""
        if __name__ == "__main__":
            print(torch.npu.is_available(), torch.npu.device_count())
            child = os.fork()
            if child == 0:
                x = torch.ones(3, device="npu")
                os._exit(0 if (x + 1).sum().item() == 6 else 1)
            print(os.waitpid(child, 0)[1])
    """)
    assert lines == [f"True {device_count}", "0"]


LOADS = """
class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((3,), float(index), device="npu")

if __name__ == "__main__":
    if sys.argv[2] == "used":
        torch.ones(1, device="npu")
    context = sys.argv[1]
    workers = 2 if context == "fork" else 1
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=workers, multiprocessing_context=context
    )
    try:
        for batch in loader:
            print(batch.device, batch[:, 0].tolist())
    except RuntimeError as error:
        print("forked-after-use" in str(error))
"""


@pytest.mark.parametrize(
    "method, before", [("spawn", "used"), ("forkserver", "used"), ("fork", "unused")]
)
def test_workers_may_make_npu_tensors(run, method, before):
    assert run(LOADS, method, before) == [
        "npu:0 [0.0, 1.0, 2.0, 3.0]",
        "npu:0 [4.0, 5.0, 6.0, 7.0]",
    ]


def test_workers_forked_after_use_raise_where_the_batch_is_awaited(run):
    assert run(LOADS, "fork", "used") == ["True"]


def test_a_worker_that_hands_on_inherited_tensors_raises_and_does_not_hang(run):
    lines = run("""
        if __name__ == "__main__":
            data = [torch.ones(2, device="npu") for _ in range(4)]
            loader = DataLoader(
                data, batch_size=None, num_workers=1, multiprocessing_context="fork"
            )
            try:
                print(list(loader))
            except RuntimeError as error:
                print(type(error).__name__, "forked-after-use" in str(error))
    """)
    assert lines == ["DeviceError True"]


def test_a_worker_that_returns_what_autograd_computed_raises_and_does_not_hang(run):
    lines = run("""
        class Computes(Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, index):
                return torch.ones(2, device="npu", requires_grad=True) * 2

        if __name__ == "__main__":
            loader = DataLoader(
                Computes(), batch_size=None, num_workers=1, multiprocessing_context="fork"
            )
            try:
                print(list(loader))
            except RuntimeError as error:
                print(error.code)
    """)
    assert lines == ["send-non-leaf"]


PINS = """
class Host(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "y": (index, "name")}

if __name__ == "__main__":
    torch.ones(1, device="npu")
    loader = DataLoader(
        Host(), batch_size=4, num_workers=2 if sys.argv[1] == "fork" else 1, pin_memory=True,
        persistent_workers=True, multiprocessing_context=sys.argv[1],
    )
    for _ in range(2):
        for batch in loader:
            x = batch["x"]
            print(x.is_pinned(), x.to("npu", non_blocking=True).sum().item(), batch["y"][1][0])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_of_cpu_workers_are_pinned(run, method):
    assert run(PINS, method) == ["True 18.0 name", "True 66.0 name"] * 2


def test_pinning_without_workers(run):
    lines = run("""
        loader = DataLoader(torch.arange(6), batch_size=3, pin_memory=True)
        print([(batch.is_pinned(), batch.tolist()) for batch in loader])
    """)
    assert lines == ["[(True, [0, 1, 2]), (True, [3, 4, 5])]"]
