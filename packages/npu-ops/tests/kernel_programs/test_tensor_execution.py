"""Programs that load and store: every instruction that treats rows by themselves, on tensors."""

import threading

import pytest
import torch

from npu_ops import _C
from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.execution import Execution, TensorExecution
from npu_ops.kernel_programs.program import (
    Columns,
    Combine,
    KernelProgram,
    Linear,
    Load,
    Norm,
    NormOptions,
    Store,
)
from npu_ops.kernel_programs.reference import ReferenceExecution
from npu_ops.kernel_programs.weights import pack
from npu_runtime import observe

from .conftest import one_sequence

WIDTH, HIDDEN, OUT = 19, 33, 10


def a_program(generator):
    """Two tensors in, two out; no width is that of a vector."""
    x, y, hidden = Columns(0, 0, WIDTH), Columns(1, 0, WIDTH), Columns(2, 0, HIDDEN)
    out = Columns(3, 0, OUT)
    norm = NormOptions(kind="layer", eps=1e-5, weight="norm")
    program = KernelProgram(
        instructions=(
            Load(out=x, argument=0),
            Load(out=y, argument=1),
            Combine(out=y, left=y, op="add", right=x, factor=-2.0),
            Linear(input=x, out=hidden, weight="up", bias="bias", norm=norm, activation="gelu"),
            Norm(input=y, out=y, options=norm),
            Store(input=Columns(1, 3, 7), result=0),
            Linear(input=hidden, out=out, weight="down"),
            Store(input=out, result=1),
        ),
        widths=(WIDTH, WIDTH, HIDDEN, OUT),
        weights={},
        layers=(),
        logits=None,
        vocabulary=0,
    )
    weights = {
        "up": pack(torch.randn(HIDDEN, WIDTH, generator=generator), "float32"),
        "down": pack(torch.randn(OUT, HIDDEN, generator=generator), "float32"),
        "bias": torch.randn(HIDDEN, generator=generator),
        "norm": torch.randn(WIDTH, generator=generator),
    }
    return program, weights


def an_execution(program, weights, rows, **how):
    return TensorExecution(
        program,
        weights,
        rows=rows,
        arguments=[(2, (rows, WIDTH)), (0, (1, rows, WIDTH))],
        results=[(rows, 7), (rows, 1, OUT)],
        **how,
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
@pytest.mark.parametrize("is_alone", [True, False])
def test_results_are_those_of_the_reference(kernel_set, rows, is_alone, generator):
    program, weights = a_program(generator)
    x, y = (torch.randn(rows, WIDTH, generator=generator) for _ in range(2))
    execution = an_execution(program, weights, rows, is_alone=is_alone, kernel_set=kernel_set)
    found = execution.run((y[None], "unused", x))
    expected = ReferenceExecution(program, weights).run([x, y])
    assert [tuple(one.shape) for one in found] == [(rows, 7), (rows, 1, OUT)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.view(rows, -1), other, rtol=1e-4, atol=1e-4)


def test_strides_of_inputs_may_be_any(generator):
    execution = an_execution(*a_program(generator), 4, is_alone=True)
    x, y = torch.randn(4, WIDTH), torch.randn(1, 4, WIDTH)
    turned = x.t().contiguous().t()
    gaps = torch.randn(1, 8, WIDTH)
    gaps[:, ::2] = y
    for one, other in zip(
        execution.run((y, None, x)), execution.run((gaps[:, ::2], None, turned)), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "bad",
    [torch.zeros(3, WIDTH), torch.zeros(4, WIDTH).double(), torch.zeros(WIDTH, 4), None, 1.0],
)
def test_inputs_of_another_kind_are_refused(bad, generator):
    execution = an_execution(*a_program(generator), 4)
    with pytest.raises(OperatorInputError, match="input 2 must be") as caught:
        execution.run((torch.zeros(1, 4, WIDTH), None, bad))
    assert caught.value.code == "kernel-program"


def test_a_missing_input_is_refused(generator):
    with pytest.raises(OperatorInputError, match="input 2: is missing"):
        an_execution(*a_program(generator), 4).run(())


def test_shapes_must_be_those_of_the_program(generator):
    program, weights = a_program(generator)
    with pytest.raises(OperatorInputError, match="must have the program's rows"):
        TensorExecution(
            program,
            weights,
            rows=2,
            arguments=[(0, (2, WIDTH)), (1, (WIDTH, 3))],
            results=[(2, 7), (2, OUT)],
        )


def test_a_program_without_logits_has_no_steps(generator):
    execution = Execution(*a_program(generator), cache="float32")
    with pytest.raises(OperatorInputError, match="has no logits"):
        execution.step(one_sequence(3))


def test_one_thread_alone_leaves_the_pool_as_it_is(generator):
    execution = an_execution(*a_program(generator), 4)
    inputs = (torch.zeros(1, 4, WIDTH), None, torch.zeros(4, WIDTH))
    execution.run(inputs)
    before = len(_C.worker_threads())
    an_execution(*a_program(generator), 4, is_alone=True).run(inputs)
    assert len(_C.worker_threads()) == before


def test_threads_get_results_of_their_own(generator):
    execution = an_execution(*a_program(generator), 1, is_alone=True)
    y = torch.zeros(1, 1, WIDTH)
    inputs = [torch.randn(1, WIDTH) for _ in range(4)]
    expected = [execution.run((y, None, x))[1] for x in inputs]
    wrong = []

    def call(number):
        found = [execution.run((y, None, inputs[number]))[1] for _ in range(300)]
        wrong.extend(number for one in found if not torch.equal(one, expected[number]))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_program_survives_as_json(generator):
    program, _ = a_program(generator)
    assert KernelProgram.from_dict(program.as_dict()) == program


def test_results_live_on_the_device_that_was_asked_for(generator):
    execution = an_execution(*a_program(generator), 2, device="npu")
    x, y = torch.randn(2, WIDTH), torch.randn(1, 2, WIDTH)
    there = execution.run((y.to("npu"), None, x.to("npu")))
    assert all(one.device.type == "npu" for one in there)
    here = an_execution(*a_program(generator.manual_seed(0)), 2).run((y, None, x))
    assert torch.equal(there[1].cpu(), here[1])


def test_the_shortcut_asks_whether_inputs_are_current(generator):
    execution = an_execution(*a_program(generator), 4, is_alone=True)
    inputs = (torch.zeros(1, 4, WIDTH), None, torch.randn(4, WIDTH))
    asked = []

    def is_current(given):
        asked.append(given)
        return len(asked) == 1

    shortcut = execution.shortcut(is_current)
    for one, other in zip(shortcut(inputs), execution.run(inputs), strict=True):
        assert torch.equal(one, other)
    assert shortcut(inputs) is None
    assert asked == [inputs, inputs]
    assert execution.shortcut(None)(inputs) is not None


def test_the_shortcut_is_not_taken_while_somebody_listens(generator):
    execution = an_execution(*a_program(generator), 4, is_alone=True, name="listened to")
    inputs = (torch.zeros(1, 4, WIDTH), None, torch.randn(4, WIDTH))
    names = []
    expected = execution.run(inputs)

    def listen(events):
        names.extend(event.name for event in events)

    observe.add_listener(listen)
    try:
        assert execution.shortcut(None)(inputs) is None
        for one, other in zip(execution.run(inputs), expected, strict=True):
            assert torch.equal(one, other)
        observe.flush()
    finally:
        observe.remove_listener(listen)
    assert "listened to" in names
