"""Whole programs against the reference, and their surroundings: threads, forks, bad rows."""

import sys
import threading
from pathlib import Path

import pytest
import torch

import forked_python
from npu_ops import _C
from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.execution import Execution
from npu_ops.kernel_programs.program import (
    Append,
    Attend,
    Columns,
    Combine,
    Embed,
    Experts,
    Keep,
    KernelProgram,
    LayerShape,
    Linear,
    Norm,
    NormOptions,
    Rotate,
    Rows,
)
from npu_ops.kernel_programs.reference import ReferenceExecution
from npu_ops.kernel_programs.weights import interleave, pack

from .conftest import one_sequence

VOCABULARY, POSITIONS = 50, 600


def a_layer(*, heads=4, key_heads=2, key_size=24, value_size=20, **attend):
    """A program with everything but experts, and its weights; no size is a multiple of another."""
    width = 72
    queries, keys, values = heads * key_size, key_heads * key_size, key_heads * value_size
    joined = queries + keys + values
    made = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=made) / shape[-1] ** 0.5

    angle = torch.rand(POSITIONS, key_size, generator=made)
    weights = {
        "table": pack(random(VOCABULARY, width) * 8, "float32"),
        "joined": pack(random(joined, width), "float32"),
        "out": pack(random(width, heads * value_size), "float32"),
        "gates": pack(interleave(random(48, width), random(48, width)), "float32"),
        "down": pack(random(width, 48), "float32"),
        "norm": 1 + 0.1 * random(width),
        "shift": random(width),
        "per head": 1 + 0.1 * random(key_size),
        "bias": random(joined),
        "own": angle.cos(),
        "other": angle.sin(),
        "partner": torch.arange(key_size).flip(0).to(torch.int32),
        "sinks": random(heads),
        "slopes": torch.rand(heads, generator=made) / 20,
    }
    rms = NormOptions(kind="rms", eps=1e-5, weight="norm")
    layer = NormOptions(kind="layer", eps=1e-5, weight="norm", bias="shift")
    heads_rms = NormOptions(kind="rms", eps=1e-5, weight="per head", parts=heads)
    hidden = Columns(0, 0, width)
    query = Columns(1, 0, queries)
    key = Columns(1, queries, keys)
    tables = {"own": "own", "other": "other", "partner": "partner"}
    instructions = (
        Embed(out=hidden, table="table", scale=0.5),
        Linear(input=hidden, out=Columns(1, 0, joined), weight="joined", bias="bias", norm=rms),
        Norm(input=query, out=query, options=heads_rms),
        Rotate(values=query, heads=heads, **tables),
        Rotate(values=key, heads=key_heads, **tables),
        Append(keys=key, values=Columns(1, queries + keys, values), layer=0),
        Attend(
            queries=query, out=Columns(2, 0, heads * value_size), layer=0, heads=heads, scale=0.2,
            **attend,
        ),
        Keep(input=hidden, out=Columns(3, 0, width)),
        Keep(input=Columns(2, 0, heads * value_size), out=Columns(4, 0, heads * value_size)),
        Linear(
            input=Columns(4, 0, heads * value_size), out=Columns(3, 0, width), weight="out",
            residual=Columns(3, 0, width), factor=0.7,
        ),
        Norm(input=Columns(3, 0, width), out=Columns(0, 0, width), options=layer),
        Linear(input=hidden, out=Columns(5, 0, 48), weight="gates", gated=True, activation="silu"),
        Linear(input=Columns(5, 0, 48), out=Columns(0, 0, width), weight="down"),
        Combine(out=hidden, left=hidden, op="mul", right="norm", activation="gelu", factor=2.0),
        Combine(out=hidden, left=hidden, op="add", right=Columns(3, 0, width)),
        Linear(input=hidden, out=Columns(6, 0, VOCABULARY), weight="table", soft_cap=5.0),
    )  # fmt: skip
    program = KernelProgram(
        instructions=instructions,
        widths=(width, joined, heads * value_size, width, heads * value_size, 48, VOCABULARY),
        weights={},
        layers=(LayerShape(key_heads, key_size, value_size),),
        logits=Columns(6, 0, VOCABULARY),
        vocabulary=VOCABULARY,
        positions=POSITIONS,
    )
    return program, weights


def mixed_rows(generator):
    """A chunk of two prompts and a single token, in blocks in any order."""
    sequences = [0] * 70 + [1] * 5 + [2]
    slots = [*range(70), *range(5), 0]
    tables = torch.randperm(24, generator=generator)[:18].view(3, 6).to(torch.int32)
    return Rows(
        tokens=torch.randint(0, VOCABULARY, (76,), generator=generator),
        positions=torch.tensor(slots) + 3,
        sequences=torch.tensor(sequences, dtype=torch.int32),
        slots=torch.tensor(slots, dtype=torch.int32),
        block_tables=tables,
        kept=torch.tensor([75, 0, 69, 74, 3]),
    )


def pair(program, weights, kernel_set, cache="float32"):
    execution = Execution(program, weights, cache=cache, kernel_set=kernel_set)
    reference = ReferenceExecution(program, weights)
    for one in (execution, reference):
        one.reserve(48)
    return execution, reference


ATTENDS = {
    "plain": {},
    "window": {"window": 19},
    "soft cap": {"soft_cap": 2.0},
    "sinks": {"sinks": "sinks"},
    "slopes": {"slopes": "slopes"},
    "all": {"window": 30, "soft_cap": 3.0, "sinks": "sinks", "slopes": "slopes"},
    "one head each": {"heads": 3, "key_heads": 3},
    "many heads": {"heads": 14, "key_heads": 1},
    "equal sizes": {"heads": 4, "key_heads": 4, "key_size": 16, "value_size": 16},
    "wide": {"heads": 2, "key_heads": 1, "key_size": 130, "value_size": 70},
}


@pytest.mark.parametrize("attend", ATTENDS)
def test_steps_are_those_of_the_reference(kernel_set, attend, generator):
    execution, reference = pair(*a_layer(**ATTENDS[attend]), kernel_set)
    rows = mixed_rows(generator)
    torch.testing.assert_close(execution.step(rows), reference.step(rows), rtol=1e-4, atol=1e-4)
    for slot in range(70, 73):
        one = Rows(
            tokens=torch.tensor([slot % 7, 3]),
            positions=torch.tensor([slot, 2]),
            sequences=torch.tensor([0, 2], dtype=torch.int32),
            slots=torch.tensor([slot, slot - 69], dtype=torch.int32),
            block_tables=rows.block_tables,
            kept=torch.tensor([1, 0]),
        )
        torch.testing.assert_close(execution.step(one), reference.step(one), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache, tolerance", [("bfloat16", 2e-2), ("u8", 5e-2)])
def test_caches_of_fewer_bits_round(kernel_set, cache, tolerance, generator):
    execution, reference = pair(*a_layer(), kernel_set, cache)
    rows = mixed_rows(generator)
    found, expected = execution.step(rows), reference.step(rows)
    assert 0 < (found - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize("cache", ["float32", "bfloat16", "u8"])
def test_a_sequence_is_the_same_read_in_any_pieces(kernel_set, cache):
    program, weights = a_layer(window=100)
    execution = Execution(program, weights, cache=cache, kernel_set=kernel_set)
    execution.reserve(32)
    whole = execution.step(one_sequence_of(0, 300))
    for pieces in ([1] * 300, [130, 7, 163]):
        start, found = 0, []
        for count in pieces:
            found.append(execution.step(one_sequence_of(start, count)))
            start += count
        assert torch.equal(torch.cat(found), whole)


def one_sequence_of(start, count):
    rows = one_sequence(count, start=start)
    return Rows(**{**vars(rows), "tokens": rows.positions * 7 % VOCABULARY})


def test_blocks_are_copied_read_and_written(generator):
    program, weights = a_layer()
    execution, other = (Execution(program, weights, cache="bfloat16") for _ in range(2))
    execution.reserve(8)
    other.reserve(9)
    rows = one_sequence_of(0, 20)
    execution.step(rows)
    execution.copy_block(1, 5)
    tables = torch.tensor([[0, 5]], dtype=torch.int32)
    after = Rows(**{**vars(one_sequence_of(20, 3)), "block_tables": tables})
    expected = execution.step(after)
    execution.reserve(200)  # existing values stay
    other.write_blocks([3, 8], execution.read_blocks([0, 1]))
    moved = Rows(**{**vars(after), "block_tables": torch.tensor([[3, 8]], dtype=torch.int32)})
    assert torch.equal(other.step(moved), expected)


@pytest.mark.parametrize("shares", ["softmax", "softmax_normalized", "sigmoid"])
@pytest.mark.parametrize("clamped", [False, True])
def test_experts_are_those_of_the_reference(kernel_set, shares, clamped, generator):
    width, inner, count = 48, 32, 5

    def random(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    names = [tuple(f"{kind} {i}" for i in range(count)) for kind in ("gates", "down", "b", "c")]
    weights = {"table": pack(random(VOCABULARY, width) * 6, "float32")}
    weights["router"] = pack(random(count, width) * 3, "float32")
    for gates, down, one, other in zip(*names, strict=True):
        weights[gates] = pack(random(2 * inner, width), "float32")
        weights[down] = pack(random(width, inner), "float32")
        weights[one], weights[other] = random(2 * inner), random(width)
    hidden, scores = Columns(0, 0, width), Columns(1, 0, count)
    instructions = (
        Embed(out=hidden, table="table"),
        Linear(input=hidden, out=scores, weight="router"),
        Experts(
            input=hidden, scores=scores, out=Columns(2, 0, width), gate_up=names[0], down=names[1],
            chosen=2, shares=shares, activation="silu", gate_up_bias=names[2], down_bias=names[3],
            limit=0.5 if clamped else None, residual=hidden,
        ),
    )  # fmt: skip
    program = KernelProgram(
        instructions=instructions, widths=(width, count, width), weights={}, layers=(),
        logits=Columns(2, 0, width), vocabulary=VOCABULARY,
    )  # fmt: skip
    execution, reference = pair(program, weights, kernel_set)
    for rows in (1, 2, 41):
        asked = one_sequence(rows)
        torch.testing.assert_close(
            execution.step(asked), reference.step(asked), rtol=1e-4, atol=1e-4
        )


def test_a_program_is_the_same_as_text():
    program, _ = a_layer(window=3)
    assert KernelProgram.from_dict(program.as_dict()) == program


BAD = {
    "tokens": torch.tensor([0, VOCABULARY]),
    "positions": torch.tensor([0, POSITIONS]),
    "sequences": torch.tensor([0, 1], dtype=torch.int32),
    "slots": torch.tensor([0, 16 * 32], dtype=torch.int32),
    "block_tables": torch.full((1, 32), 99, dtype=torch.int32),
    "kept": torch.tensor([2]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("how", ["range", "dtype"])
def test_rows_out_of_range_run_nothing(name, how):
    execution, _ = pair(*a_layer(), "plain")
    rows = one_sequence(2)
    before = execution.step(rows)
    bad = BAD[name] if how == "range" else getattr(rows, name).double()
    with pytest.raises(OperatorInputError) as caught:
        execution.step(Rows(**{**vars(rows), name: bad}))
    assert caught.value.code == "kernel-program"
    assert name in str(caught.value)
    assert torch.equal(execution.step(rows), before)


def test_weights_that_do_not_fit_are_refused():
    program, weights = a_layer()
    short = {**weights, "norm": torch.ones(3)}
    missing = {name: weight for name, weight in weights.items() if name != "down"}
    other = {**weights, "out": pack(torch.zeros(5, 5), "float32")}
    for wrong in (short, missing, other):
        with pytest.raises(OperatorInputError) as caught:
            Execution(program, wrong, cache="float32")
        assert caught.value.code == "kernel-program"


def test_a_set_that_the_processor_lacks_is_refused():
    with pytest.raises(OperatorInputError, match="instruction set"):
        Execution(*a_layer(), cache="float32", kernel_set="avx1024")


def test_steps_of_several_threads_are_queued():
    program, weights = a_layer()
    execution = Execution(program, weights, cache="float32")
    execution.reserve(32)
    expected = execution.step(one_sequence_of(0, 40))
    tables = torch.arange(32, dtype=torch.int32).view(4, 8)
    results = {}

    def run(index):
        rows = Rows(**{**vars(one_sequence_of(0, 40)), "block_tables": tables[index : index + 1]})
        results[index] = [execution.step(rows) for _ in range(20)]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, expected) for found in results.values() for one in found)


def test_as_many_threads_as_torch_may_use():
    execution, _ = pair(*a_layer(), "plain")
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            execution.step(one_sequence(3))
            assert len(_C.worker_threads()) == min(count, _C.usable_processors()) - 1
    finally:
        torch.set_num_threads(threads)


CHILD = """
import os, sys
sys.path[:0] = {folders!r}
import torch
from kernel_programs.test_execution import a_layer, one_sequence_of
from npu_ops.kernel_programs.execution import Execution
execution = Execution(*a_layer(), cache="float32")
execution.reserve(32)
before = execution.step(one_sequence_of(0, 40))
{body}
"""


def run_child(body, **how):
    folders = [str(Path(__file__).resolve().parents[1]), str(Path(forked_python.__file__).parent)]
    code = CHILD.format(folders=folders, body=body)
    return forked_python.run([sys.executable, "-c", code], timeout=120, **how)


ENDED = """
threads = lambda: len(os.listdir("/proc/self/task"))
torch.set_num_threads(2)
execution.step(one_sequence_of(0, 40))
alone = threads()
torch.rand(4_000_000).exp().sum()
awake = threads()
execution.step(one_sequence_of(0, 40))
assert (awake, threads()) == (alone + 1, alone), (alone, awake, threads())
assert torch.rand(4_000_000).exp().isfinite().all()
"""


@pytest.mark.skipif(_C.usable_processors() < 2, reason="a pool of one thread wakes none")
def test_torchs_threads_do_not_spin_while_the_pool_works():
    done = run_child(ENDED)
    assert done.returncode == 0, done.stderr


def test_a_child_of_a_process_whose_torch_has_threads_runs_steps():
    done = run_child(
        "torch.set_num_threads(2)\n"
        "torch.rand(4_000_000).exp().sum()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    after = execution.step(one_sequence_of(0, 40))\n"
        "    os._exit(0 if torch.equal(after, before) else 3)\n"
        "_, status = os.waitpid(child, 0)\n"
        "print(os.waitstatus_to_exitcode(status))\n"
    )
    assert done.stdout == "0\n", done.stderr


def test_a_forked_child_has_a_new_pool():
    done = run_child(
        "child = os.fork()\n"
        "same = torch.equal(execution.step(one_sequence_of(0, 40)), before)\n"
        "if child == 0:\n"
        "    os._exit(0 if same else 3)\n"
        "_, status = os.waitpid(child, 0)\n"
        "print(same, os.waitstatus_to_exitcode(status))\n"
    )
    assert done.stdout == "True 0\n", done.stderr


def test_want_of_memory_is_an_error_and_the_next_step_runs():
    """The pieces of a context of 2^26 slots, which all lie in one block, take gigabytes."""
    done = run_child(
        "import resource\n"
        "from dataclasses import replace\n"
        "execution.step(one_sequence_of(40, 260))\n"
        "rows = one_sequence_of(299, 1)\n"
        "expected = execution.step(rows)\n"
        "far = {'slots': torch.tensor([2**26 - 1], dtype=torch.int32),\n"
        "       'block_tables': torch.full((1, 2**22), 31, dtype=torch.int32)}\n"
        "mapped = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "before = resource.getrlimit(resource.RLIMIT_AS)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, before[1]))\n"
        "for _ in range(3):\n"
        "    try:\n"
        "        execution.step(replace(rows, **far))\n"
        "    except Exception as failure:\n"
        "        print(failure.code, torch.equal(execution.step(rows), expected))\n"
    )
    assert done.stdout == "out-of-memory True\n" * 3, done.stderr


def test_a_process_on_one_processor_and_its_end():
    done = run_child(
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(torch.equal(execution.step(one_sequence_of(0, 40)), before))\n"
    )
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def chosen_rows(kept):
    return Rows(
        tokens=torch.tensor([3, 7, 1]),
        positions=torch.tensor([0, 1, 2]),
        sequences=torch.zeros(3, dtype=torch.int32),
        slots=torch.arange(3, dtype=torch.int32),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        kept=torch.tensor(kept, dtype=torch.int64),
    )


def test_a_program_that_chooses_no_rows_gives_all_or_an_error():
    x, y = Columns(0, 0, 8), Columns(1, 0, 16)
    program = KernelProgram(
        instructions=(Embed(out=x, table="t"), Linear(input=x, out=y, weight="w")),
        widths=(8, 16),
        weights={},
        layers=(),
        logits=y,
        vocabulary=10,
    )
    weights = {"t": pack(torch.randn(10, 8), "float32"), "w": pack(torch.randn(16, 8), "float32")}
    execution = Execution(program, weights, cache="float32")
    execution.reserve(1)
    for kept in ([0], [], [2, 1, 0]):
        with pytest.raises(OperatorInputError, match="chooses no rows"):
            execution.step(chosen_rows(kept))
    assert execution.step(chosen_rows([0, 1, 2])).shape == (3, 16)


def test_logits_that_are_written_before_rows_are_chosen_are_refused():
    x, y = Columns(0, 0, 8), Columns(1, 0, 8)
    program = KernelProgram(
        instructions=(
            Embed(out=x, table="t"),
            Combine(out=y, left=x, factor=2.0),
            Keep(input=x, out=x),
            Combine(out=y, left=x),
        ),
        widths=(8, 8),
        weights={},
        layers=(),
        logits=y,
        vocabulary=10,
    )
    with pytest.raises(OperatorInputError, match="must be written after Keep"):
        Execution(program, {"t": pack(torch.randn(10, 8), "float32")}, cache="float32")


def test_a_step_takes_nothing_from_the_step_before():
    x, y, kept, out = (Columns(buffer, 0, 64) for buffer in range(4))
    rms = NormOptions(kind="rms", eps=1e-5)
    program = KernelProgram(
        instructions=(
            Embed(out=x, table="t"),
            Linear(input=x, out=y, weight="w", norm=rms),
            Keep(input=y, out=kept),
            Linear(input=kept, out=out, weight="head", norm=rms),
        ),
        widths=(64, 64, 64, 64),
        weights={},
        layers=(),
        logits=out,
        vocabulary=10,
    )
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: pack(torch.randn(rows, 64, generator=generator), "float32")
        for name, rows in [("t", 10), ("w", 64), ("head", 64)]
    }

    def step(execution, tokens):
        prompt = vars(one_sequence(len(tokens)))
        prompt |= {"tokens": torch.tensor(tokens), "kept": torch.tensor([len(tokens) - 1])}
        return execution.step(Rows(**prompt))

    def new():
        execution = Execution(program, weights, cache="float32")
        execution.reserve(4)
        return execution

    one = new()
    step(one, [3, 7, 1])
    assert torch.equal(step(one, [5]), step(new(), [5]))
