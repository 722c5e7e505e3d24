"""Checks of requests: making them, binding memory, finding outputs and layers."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int64, c_size_t, c_void_p
from typing import Any

from npu_runtime.driver_conformance.bench import Bench, Block, expect
from npu_runtime.driver_conformance.driver_table import (
    MAX_RANK,
    Direction,
    Dtype,
    LayerRecord,
    Port,
    Status,
)
from npu_runtime.driver_conformance.growth import expect_no_growth
from npu_runtime.driver_conformance.registry import CheckFailure, Unsupported, check

__all__: list[str] = []


@check("request_create")
def makes_contexts_apart(bench: Bench) -> None:
    """Two requests of one program keep their own memory."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    requests = [bench.request(program) for _ in range(2)]
    blocks = [(bench.floats([start] * 64), bench.floats([0] * 64)) for start in (1, 10)]
    for request, (x, y) in zip(requests, blocks, strict=True):
        bench.bind(request, Direction.INPUT, 0, x, [64])
        bench.bind(request, Direction.OUTPUT, 0, y, [64])
    for request in requests:
        bench.run(request, stream)
    got = [float(bench.read_floats(y, 64)[0]) for _, y in blocks]
    expect(got == [2, 11], f"two requests with inputs 1 and 10 gave {got}; the rule is 2 and 11")


@check("request_create")
def starts_variables_anew(bench: Bench) -> None:
    """A new request counts from the beginning, whatever another one has counted."""
    program, stream = bench.load(bench.optional_program("counter")), bench.stream()
    for _ in range(2):
        request = bench.request(program)
        x, y = bench.floats([1, 2]), bench.floats([0, 0])
        bench.bind(request, Direction.INPUT, 0, x, [2])
        bench.bind(request, Direction.OUTPUT, 0, y, [2])
        for number in (1, 2, 3):
            bench.run(request, stream)
            got = bench.read_floats(y, 2).tolist()
            expect(got == [number, 2 * number], f"run {number} of a counter of (1, 2) gave {got}")


@check("request_destroy")
def leaves_other_requests_alone(bench: Bench) -> None:
    """And the program."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    kept = bench.request(program)
    x, y = bench.floats([3] * 64), bench.floats([0] * 64)
    bench.bind(kept, Direction.INPUT, 0, x, [64])
    bench.bind(kept, Direction.OUTPUT, 0, y, [64])
    for _ in range(10):
        bench.call("request_destroy", bench.request(program))
    bench.run(kept, stream)
    expect(bench.read_floats(y, 64)[0] == 4, "another request gives wrong values")


@check("request_destroy")
def gives_its_memory_back(bench: Bench) -> None:
    """Requests can be made and destroyed for ever."""
    program = bench.load(bench.programs().add_one)
    expect_no_growth(
        lambda: bench.call("request_destroy", bench.request(program)), times=3000, what="a request"
    )


@check("request_bind")
def binds_each_port_by_its_index(bench: Bench) -> None:
    """The two inputs and two outputs of a program are not exchanged."""
    request, stream = bench.request(bench.load(bench.programs().two_ports)), bench.stream()
    blocks = [bench.floats([value] * 6) for value in (10, 20, 0, 0)]
    for index in range(2):
        bench.bind(request, Direction.INPUT, index, blocks[index], [2, 3])
        bench.bind(request, Direction.OUTPUT, index, blocks[2 + index], [2, 3])
    bench.run(request, stream)
    got = [float(bench.read_floats(block, 6)[0]) for block in blocks[2:]]
    expect(got == [11, 40], f"x + 1 and 2 * y for x = 10, y = 20 gave {got}")


@check("request_bind")
def binds_again(bench: Bench) -> None:
    """Other memory, and the same memory with other contents, for inputs and outputs."""
    request, stream = bench.request(bench.load(bench.programs().add_one)), bench.stream()
    inputs = [bench.floats([value] * 64) for value in (1, 5)]
    outputs = [bench.floats([0] * 64) for _ in range(2)]
    for number in (0, 1, 0, 0):
        bench.write(inputs[number], bench.read(inputs[1 - number], 4))
        bench.bind(request, Direction.INPUT, 0, inputs[number], [64])
        bench.bind(request, Direction.OUTPUT, 0, outputs[number], [64])
        bench.run(request, stream)
        expected = bench.read_floats(inputs[number], 64) + 1
        got = bench.read_floats(outputs[number], 64)
        expect(bool((got == expected).all()), "a run used memory that was bound before")


def _refuse(bench: Bench, request: c_void_p, block: Block, what: str, **wrong: Any) -> None:
    arguments = {"direction": Direction.INPUT, "index": 0, "dtype": Dtype.FLOAT32, "dims": [64]}
    arguments |= {"data": block.address} | wrong
    dims: Sequence[int] = arguments["dims"]  # type: ignore[assignment]
    rank = wrong.get("rank", len(dims))
    array = (c_int64 * max(1, len(dims)))(*dims)
    bench.refuses(
        "request_bind", request, arguments["direction"], arguments["index"], arguments["dtype"],
        rank, array, arguments["data"], what=what,
    )  # fmt: skip


@check("request_bind")
def refuses_what_does_not_fit_the_port(bench: Bench) -> None:
    """Index, dtype, rank, dims, address: each wrong in turn. The request runs afterwards."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    request = bench.request(program)
    x, y = bench.floats([1] * 64), bench.floats([0] * 64)
    _refuse(bench, request, x, "input 1 of 1", index=1)
    _refuse(bench, request, x, "input 2**40 of 1", index=2**40)
    _refuse(bench, request, y, "output 1 of 1", index=1, direction=Direction.OUTPUT)
    _refuse(bench, request, x, "int32 for float32", dtype=Dtype.INT32)
    _refuse(bench, request, x, "a dtype that does not exist", dtype=99)
    _refuse(bench, request, x, "dims (63) for (64)", dims=[63])
    _refuse(bench, request, x, "dims (-1) for (64)", dims=[-1])
    _refuse(bench, request, x, "dims (8, 8) for (64)", dims=[8, 8])
    _refuse(bench, request, x, "rank 0 for 1", dims=[])
    _refuse(bench, request, x, "a negative rank", rank=-1)
    _refuse(bench, request, x, "a rank above the limit", dims=[1] * (MAX_RANK + 1))
    _refuse(bench, request, x, "NULL for 64 values", data=None)
    bench.bind(request, Direction.INPUT, 0, x, [64])
    bench.bind(request, Direction.OUTPUT, 0, y, [64])
    bench.run(request, stream)
    expect(bench.read_floats(y, 64)[0] == 2, "gives wrong values after a refusal")


@check("request_output")
def finds_outputs_of_dynamic_shape(bench: Bench) -> None:
    """Shape and values of each run, from no elements to many."""
    request = bench.request(bench.load(bench.optional_program("dynamic_sum")))
    stream = bench.stream()
    for count in (3, 1, 1000, 0, 2):
        x, y = bench.floats([1.5] * count), bench.floats([2] * count)
        for index, block in enumerate((x, y)):
            bench.bind(request, Direction.INPUT, index, block, [count])
        bench.run(request, stream)
        dims, values = bench.output(request, 0)
        expect(dims == [count], f"gave dims {dims} for {count} elements")
        expect(values.tolist() == [3.5] * count, f"gave wrong values for {count} elements")


@check("request_output")
def refuses_an_index_that_does_not_exist(bench: Bench) -> None:
    """One past the last."""
    request = bench.request(bench.load(bench.programs().two_ports))
    bench.refuses(
        "request_output", request, 2, byref(Port()), byref(c_void_p()), what="output 2 of 2"
    )


def _request_with_layers(bench: Bench) -> c_void_p:
    options = bench.programs().layer_options
    if options is None:
        raise Unsupported("the driver's program set has no layer_options")
    request = bench.request(bench.load(bench.programs().add_one, options=options))
    _run_add_one(bench, request)
    return request


def _run_add_one(bench: Bench, request: c_void_p) -> None:
    stream, x, y = bench.stream(), bench.floats([1] * 64), bench.floats([0] * 64)
    bench.bind(request, Direction.INPUT, 0, x, [64])
    bench.bind(request, Direction.OUTPUT, 0, y, [64])
    bench.run(request, stream)


@check("request_layers")
def records_the_layers_of_a_run(bench: Bench) -> None:
    """Names that end within their fields, and times that are set."""
    request = _request_with_layers(bench)
    count = c_size_t()
    bench.must("request_layers", request, None, 0, byref(count))
    expect(count.value > 0, "counted no layers")
    memory = ctypes.create_string_buffer(b"\xff" * (ctypes.sizeof(LayerRecord) * count.value))
    records = (LayerRecord * count.value).from_buffer(memory)
    bench.must("request_layers", request, records, count.value, byref(count))
    for record in records:
        expect(bool(record.name), "a layer has no name")
        longest = max(len(record.name), len(record.type) + 192, len(record.implementation) + 192)
        expect(longest < 256, "a layer's text does not end within its field")
        expect(record.duration_us >= 0, "a layer's duration_us is not set")


@check("request_layers")
def fills_no_more_than_it_was_given(bench: Bench) -> None:
    """With less room than layers it fills the room, and counts all."""
    request = _request_with_layers(bench)
    total, count = c_size_t(), c_size_t()
    bench.must("request_layers", request, None, 0, byref(total))
    size = ctypes.sizeof(LayerRecord)
    for room in range(min(3, total.value)):
        memory = ctypes.create_string_buffer(b"\x5a" * (4 * size))
        records = (LayerRecord * 4).from_buffer(memory)
        bench.must("request_layers", request, records, room, byref(count))
        expect(count.value == total.value, f"counted {count.value} layers with room for {room}")
        if memory.raw[room * size : 4 * size] != b"\x5a" * ((4 - room) * size):
            raise CheckFailure(f"wrote more than the {room} records it was given")


@check("request_layers")
def says_when_the_program_records_none(bench: Bench) -> None:
    """NPU_ERROR_UNSUPPORTED for a program that was loaded without the options."""
    request = bench.request(bench.load(bench.programs().add_one))
    _run_add_one(bench, request)
    bench.refuses(
        "request_layers", request, None, 0, byref(c_size_t()),
        what="a program that records none", status=Status.ERROR_UNSUPPORTED,
    )  # fmt: skip
