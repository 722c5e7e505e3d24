"""Indices that a program looks at: in inputs before a run, in outputs after it."""

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops

import npu_runtime
from npu_runtime import IndexCheck, IndexRangeError, InputError, NpuError, load_program, sim

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
ROWS = 4


@pytest.fixture(params=[torch.int32, torch.int64])
def dtype(request):
    return request.param


@pytest.fixture
def load(save_model, dtype):
    """Loads a program that gives rows of a table by an index, and the index plus one in int32."""

    def load(*checks: IndexCheck) -> npu_runtime.Program:
        kind = np.int32 if dtype is torch.int32 else np.int64
        table = ops.parameter([ROWS, 2], np.float32, name="table")
        index = ops.parameter([3], kind, name="index")
        rows = ops.gather(table, index, ops.constant(np.int64(0)))
        shifted = ops.convert(ops.add(index, ops.constant(np.ones(1, kind))), "i32")
        model = ov.Model([rows, shifted], [table, index], "rows")
        program = load_program(save_model(model), name="rows", options=F32)
        program.check_indices(checks)
        return program

    return load


def run(program, values, dtype, device="cpu"):
    table = torch.arange(2.0 * ROWS).view(ROWS, 2).to(device)
    return program.run([table, torch.tensor(values, dtype=dtype).to(device)])


IN_INPUT = IndexCheck(what="an index of rows (m.py:3)", port=1, size=ROWS)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("wrong", [-1, ROWS, 2**31 - 1, -(2**31)])
def test_an_index_out_of_range_raises_and_the_next_run_is_right(load, dtype, device, wrong):
    program = load(IN_INPUT)
    with pytest.raises(IndexRangeError) as failure:
        run(program, [0, wrong, 1], dtype, device)
    assert failure.value.code == "index-range"
    assert f"rows: an index of rows (m.py:3) must be from 0 to 3, got {wrong}." in str(
        failure.value
    )
    rows, _ = run(program, [0, 3, 1], dtype, device)
    assert rows[:, 0].tolist() == [0, 6, 2]


@pytest.mark.parametrize("dtype", [torch.int64], indirect=True)
def test_an_index_of_64_bits_is_not_cut_off(load, dtype):
    program = load(IN_INPUT)
    with pytest.raises(IndexRangeError, match=str(1 << 40)):
        run(program, [0, 1 << 40, 1], dtype)


def test_the_error_is_of_every_class_that_torch_raises(load, dtype):
    for kind in (NpuError, IndexError, RuntimeError):
        with pytest.raises(kind, match="index-range"):
            run(load(IN_INPUT), [9, 0, 0], dtype)


def test_negative_indices_may_count_from_the_end(load, dtype):
    program = load(IndexCheck(what="i", port=1, size=ROWS, wraps=True))
    rows, _ = run(program, [0, -ROWS, -1], dtype)
    assert rows[:, 0].tolist() == [0, 0, 6]
    with pytest.raises(IndexRangeError, match=r"from -4 to 3, got -5\."):
        run(program, [0, -ROWS - 1, -1], dtype)


def test_a_size_may_be_that_of_an_input(load, dtype):
    program = load(IndexCheck(what="i", port=1, size=None, size_port=0, size_dim=0))
    run(program, [0, 3, 1], dtype)
    with pytest.raises(IndexRangeError, match="from 0 to 3, got 4"):
        run(program, [0, 4, 1], dtype)


def test_a_size_may_be_what_an_output_holds(load, dtype):
    program = load(IndexCheck(what="i", port=1, size_port=1, is_size_output=True))
    run(program, [0, 3, 1], dtype)  # the greatest index is always below itself plus one


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_indices_in_outputs_are_looked_at_after_the_run(load, dtype, device):
    program = load(IndexCheck(what="i", port=1, is_output=True, size=ROWS))
    run(program, [0, 2, 1], dtype, device)

    def go_wrong():
        run(program, [0, 3, 1], dtype, device)
        torch.npu.synchronize()  # a stream that took over the run reports it here

    with pytest.raises(IndexRangeError, match="from 0 to 3, got 4"):
        go_wrong()
    _, shifted = run(program, [0, 2, 1], dtype, device)
    assert shifted.tolist() == [1, 3, 2]


def test_a_check_names_ports_that_the_program_has(load):
    for wrong in (
        IndexCheck(what="i", port=2, size=1),
        IndexCheck(what="i", port=0, size=1),
        IndexCheck(what="i", port=1, size_port=0, size_dim=2),
        IndexCheck(what="i", port=1, size_port=0),
    ):
        with pytest.raises(InputError, match="the check of i must name an integer port") as failure:
            load(wrong)
        assert failure.value.code == "program-input"


def test_a_captured_graph_looks_at_each_replay(load, dtype):
    program = load(IN_INPUT)
    table = torch.arange(2.0 * ROWS).view(ROWS, 2).to("npu")
    index = torch.tensor([0, 1, 2], dtype=dtype, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        rows, _ = program.run([table, index])
    graph.replay()
    index.copy_(torch.tensor([3, 1, 9], dtype=dtype))
    with pytest.raises(IndexRangeError, match="got 9"):
        graph.replay()
    index.copy_(torch.tensor([3, 1, 0], dtype=dtype))
    graph.replay()
    assert rows[:, 0].tolist() == [6, 2, 0]


@pytest.mark.driver("sim", "work of which one can say when it runs")
class TestOnAStream:
    """Runs that a stream has taken over; checks after them raise later."""

    @pytest.fixture(autouse=True)
    def slow(self):
        with sim.delay(20_000, 20_000):
            yield
        torch.npu.synchronize()

    def test_an_index_that_nobody_is_writing_raises_at_once(self, load, dtype):
        program = load(IN_INPUT)
        run(program, [0, 1, 2], dtype, "npu")
        with pytest.raises(IndexRangeError) as failure:
            run(program, [0, 7, 2], dtype, "npu")
        assert "enqueued earlier" not in str(failure.value)

    @pytest.mark.parametrize("dtype", [torch.int32], indirect=True)
    def test_an_index_that_is_being_computed_raises_when_the_stream_is_waited_for(
        self, load, dtype
    ):
        first, second = load(), load(IN_INPUT)
        _, shifted = run(first, [0, 3, 1], dtype, "npu")
        second.run([torch.zeros(ROWS, 2, device="npu"), shifted])
        assert not torch.npu.current_stream().query()
        with pytest.raises(IndexRangeError) as failure:
            torch.npu.synchronize()
        assert "rows: an index of rows" in str(failure.value)
        assert "It was enqueued earlier" in str(failure.value)
        rows, _ = run(second, [0, 3, 1], dtype, "npu")
        assert rows[:, 0].tolist() == [0, 6, 2]

    def test_an_index_in_an_output_raises_where_the_host_reads_results(self, load, dtype):
        program = load(IndexCheck(what="i", port=1, is_output=True, size=ROWS))
        rows, _ = run(program, [0, 3, 1], dtype, "npu")
        with pytest.raises(RuntimeError, match=r"got 4\..*\[index-range\]"):
            rows.cpu()
        assert run(program, [0, 2, 1], dtype, "npu")[0].cpu()[:, 0].tolist() == [0, 4, 2]

    def test_the_next_run_of_the_stream_raises(self, load, dtype):
        program = load(IndexCheck(what="i", port=1, is_output=True, size=ROWS))
        run(program, [0, 3, 1], dtype, "npu")
        while not torch.npu.current_stream().query():
            pass
        with pytest.raises(IndexRangeError, match="got 4"):
            run(program, [0, 1, 2], dtype, "npu")
        run(program, [0, 1, 2], dtype, "npu")
