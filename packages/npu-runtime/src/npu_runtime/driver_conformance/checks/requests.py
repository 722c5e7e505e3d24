"""Request checks: creation, bound memory, outputs, layers and runs."""

import ctypes
import threading
from collections.abc import Sequence
from ctypes import byref, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from npu_runtime.driver_conformance.bench import (
    NO_DONE,
    Bench,
    Block,
    CheckFailure,
    Done,
    Unsupported,
    expect,
    expect_no_growth,
)
from npu_runtime.driver_conformance.driver_table import (
    DONE,
    MAX_RANK,
    Direction,
    Dtype,
    LayerRecord,
    Port,
    Status,
)
from npu_runtime.driver_conformance.registry import check

__all__: list[str] = []


def _bound(bench: Bench, program: c_void_p, x: Block, y: Block) -> c_void_p:
    """Returns a request of a program with one input and one output of 64 values, both bound."""
    request = bench.request(program)
    bench.bind(request, Direction.INPUT, 0, x, [64])
    bench.bind(request, Direction.OUTPUT, 0, y, [64])
    return request


@check("request_create")
def makes_contexts_apart(bench: Bench) -> None:
    """Two requests of one program keep their own memory."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    blocks = [(bench.floats([start] * 64), bench.floats([0] * 64)) for start in (1, 10)]
    for request in [_bound(bench, program, x, y) for x, y in blocks]:
        bench.run(request, stream)
    got = [float(bench.read_floats(y, 64)[0]) for _, y in blocks]
    expect(got == [2, 11], f"two requests with inputs 1 and 10 gave {got}; the rule is 2 and 11")


@check("request_create")
def starts_variables_anew(bench: Bench) -> None:
    """A new request has its variables' initial values, whatever other requests did."""
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
    """Destroying a request keeps other requests and the program."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    y = bench.floats([0] * 64)
    kept = _bound(bench, program, bench.floats([3] * 64), y)
    for _ in range(10):
        bench.call("request_destroy", bench.request(program))
    bench.run(kept, stream)
    expect(bench.read_floats(y, 64)[0] == 4, "another request gives wrong values")


@check("request_destroy")
def gives_its_memory_back(bench: Bench) -> None:
    """Creating and destroying requests repeatedly does not leak memory."""
    program = bench.load(bench.programs().add_one)
    expect_no_growth(
        lambda: bench.call("request_destroy", bench.request(program)), times=3000, what="a request"
    )


@check("request_bind")
def binds_each_port_by_its_index(bench: Bench) -> None:
    """A program's two inputs and two outputs are not swapped."""
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
    """Inputs and outputs can be rebound to other memory, or to the same with new contents."""
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
    """A wrong index, dtype, rank, shape or address is refused; the request runs afterwards."""
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
    """Checks the shape and values of each run, including empty outputs."""
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
    return _run_once(bench, bench.load(bench.programs().add_one, options=options))


def _run_once(bench: Bench, program: c_void_p) -> c_void_p:
    request = _bound(bench, program, bench.floats([1] * 64), bench.floats([0] * 64))
    bench.run(request, bench.stream())
    return request


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
    """A short buffer is filled, and all layers are counted."""
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
    """Returns NPU_ERROR_UNSUPPORTED for a program loaded without the option."""
    request = _run_once(bench, bench.load(bench.programs().add_one))
    bench.refuses(
        "request_layers", request, None, 0, byref(c_size_t()),
        what="a program that records none", status=Status.ERROR_UNSUPPORTED,
    )  # fmt: skip


_RUNS = 50


@check("request_run")
def is_over_when_it_returns_without_done(bench: Bench) -> None:
    """Each of many runs is read right after it."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    x, y = bench.floats([0] * 64), bench.floats([0] * 64)
    request = _bound(bench, program, x, y)
    for number in range(_RUNS):
        bench.write(x, np.full(64, number, np.float32).tobytes())
        bench.run(request, stream)
        expect(bench.read_floats(y, 64).tolist() == [number + 1] * 64, "gave another run's values")


@check("request_run")
def waits_for_earlier_work_without_done(bench: Bench) -> None:
    """The waiting run starts after the work enqueued before it."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    request = _bound(bench, program, bench.floats([1] * 64), bench.floats([0] * 64))
    done = bench.enqueue_busy_work(stream)
    bench.run(request, stream)
    bench.expect_all_done(done, "a run that waits")


@check("request_run")
def tells_done_once_in_order(bench: Bench) -> None:
    """Each accepted run calls back once, in order, with its context and NPU_OK."""
    program, stream, done = bench.load(bench.programs().add_one), bench.stream(), bench.done()
    request = _bound(bench, program, bench.floats([1] * 64), bench.floats([0] * 64))
    bench.enqueue_busy_work(stream)
    for number in range(1, _RUNS + 1):
        bench.must("request_run", request, stream, done.callback, number)
    bench.must("stream_synchronize", stream)
    expect(
        done.contexts == list(range(1, _RUNS + 1)),
        f"`done` was called {len(done.calls)} times for {_RUNS} runs, or out of order",
    )
    bad = [call for call in done.calls if call[1] != Status.OK]
    expect(not bad, f"`done` reported failures: {bad[:1]}")


@check("request_run")
def keeps_its_place_between_copies(bench: Bench) -> None:
    """Copies in, runs and copies out twenty times, all enqueued behind slow work."""
    program, stream, done = bench.load(bench.programs().add_one), bench.stream(), bench.done()
    value, x, y = (bench.floats([0] * 64) for _ in range(3))
    request = _bound(bench, program, x, y)
    bench.enqueue_busy_work(stream)
    for number in range(20):
        for to, source in ((x, value), (None, None), (value, y)):
            context = 3 * number
            if to is None or source is None:
                bench.must("request_run", request, stream, done.callback, context + 1)
            else:
                bench.must(
                    "memory_copy", stream, to.address, source.address, 256, done.callback, context
                )
    bench.must("stream_synchronize", stream)
    got = float(bench.read_floats(value, 64)[0])
    expect(got == 20, f"twenty times x + 1, each on the former's result, gave {got}")


@check("request_run")
def counts_in_its_own_request(bench: Bench) -> None:
    """Two requests of a program with variables keep separate counts when enqueued alternately."""
    program, stream = bench.load(bench.optional_program("counter")), bench.stream()
    done, outputs, requests = bench.done(), [], []
    for step in (1, 10):
        request, x, y = bench.request(program), bench.floats([step] * 2), bench.floats([0] * 2)
        bench.bind(request, Direction.INPUT, 0, x, [2])
        bench.bind(request, Direction.OUTPUT, 0, y, [2])
        requests.append(request)
        outputs.append(y)
    for number in range(10):
        bench.must("request_run", requests[number % 2], stream, done.callback, number)
    bench.must("stream_synchronize", stream)
    got = [float(bench.read_floats(y, 2)[0]) for y in outputs]
    expect(got == [5, 50], f"five runs that add 1 and five that add 10 gave {got}")


@check("request_run")
def tells_of_a_run_that_fails(bench: Bench) -> None:
    """Lengths that do not broadcast are refused, or fail once; the next run is correct."""
    program, stream = bench.load(bench.optional_program("dynamic_sum")), bench.stream()
    for done in (None, bench.done()):
        request = bench.request(program)
        refused = _bind_lengths(bench, request, 2, 3)
        if not refused:
            _expect_failure(bench, request, stream, done)
        again = bench.request(program)
        bind_refused = _bind_lengths(bench, again, 2, 2)
        expect(not bind_refused, "refuses to bind good memory after a failure")
        bench.run(again, stream)
        expect(bench.output(again, 0)[1].tolist() == [2, 2], "gives wrong values after a failure")


def _bind_lengths(bench: Bench, request: c_void_p, *lengths: int) -> bool:
    """Binds ones, and returns whether the driver refused."""
    for index, length in enumerate(lengths):
        try:
            bench.bind(request, Direction.INPUT, index, bench.floats([1] * length), [length])
        except CheckFailure:
            return True
    return False


def _expect_failure(bench: Bench, request: c_void_p, stream: c_void_p, done: Done | None) -> None:
    callback = NO_DONE if done is None else done.callback
    status = bench.call("request_run", request, stream, callback, 7)
    if status != Status.OK:
        bench.expect_sentence()
        bench.must("stream_synchronize", stream)
        expect(done is None or not done.calls, "called `done` for a run that it refused")
        return
    expect(done is not None, "gave NPU_OK for lengths that cannot be added")
    bench.must("stream_synchronize", stream)
    calls = [] if done is None else done.calls
    expect(len(calls) == 1, f"`done` was called {len(calls)} times for a run that failed")
    context, told, message = calls[0]
    expect(context == 7 and told != Status.OK, "reported success for lengths that cannot be added")
    expect(bool(message.strip()), "reported a failure without a message")


@check("request_run")
def survives_ports_that_were_never_bound(bench: Bench) -> None:
    """The run may fail or use other memory; the next run, with all ports bound, is correct."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    bench.call("request_run", bench.request(program), stream, NO_DONE, None)
    y = bench.floats([0] * 64)
    bench.run(_bound(bench, program, bench.floats([1] * 64), y), stream)
    expect(bench.read_floats(y, 64)[0] == 2, "gives wrong values after a run with nothing bound")


@check("request_destroy")
def works_inside_the_done_of_its_run(bench: Bench) -> None:
    """The runtime destroys a request there if its run failed."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    ended = []
    for number in range(20):
        y = bench.floats([0] * 64)
        request = _bound(bench, program, bench.floats([number] * 64), y)

        def destroy(_: int, status: int, __: bytes, request: c_void_p = request) -> None:
            bench.call("request_destroy", request)
            ended.append(status)

        callback = DONE(destroy)
        bench.must("request_run", request, stream, callback, None)
        bench.must("stream_synchronize", stream)
        expect(bench.read_floats(y, 64)[0] == number + 1, "a run gave wrong values")
    expect(ended == [Status.OK] * 20, f"{len(ended)} of 20 runs were reported")


@check("request_run")
def works_on_several_threads(bench: Bench) -> None:
    """Four threads, each with its own request and stream, get the right values."""
    program = bench.load(bench.programs().add_one)
    problems: list[str] = []

    def work(first: int) -> None:
        try:
            stream, x, y = bench.stream(), bench.floats([0] * 64), bench.floats([0] * 64)
            request = _bound(bench, program, x, y)
            for number in range(first, first + _RUNS):
                bench.write(x, np.full(64, number, np.float32).tobytes())
                bench.run(request, stream)
                got = bench.read_floats(y, 64)
                expect(bool((got == number + 1).all()), "a thread read another one's values")
        except CheckFailure as failure:
            problems.append(f"{failure.function or 'request_run'}: {failure.reason}")

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not problems, "; ".join(problems))
