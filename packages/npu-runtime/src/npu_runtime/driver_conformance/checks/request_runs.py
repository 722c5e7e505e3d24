"""Checks of runs: in a stream's order, told of once, failing without a crash, on many threads."""

import threading
from ctypes import c_void_p

import numpy as np

from npu_runtime.driver_conformance.bench import NO_DONE, Bench, Block, Done, expect
from npu_runtime.driver_conformance.driver_table import DONE, Direction, Status
from npu_runtime.driver_conformance.registry import CheckFailure, check

__all__: list[str] = []

_RUNS = 50


def _bound(bench: Bench, program: c_void_p, x: Block, y: Block) -> c_void_p:
    request = bench.request(program)
    bench.bind(request, Direction.INPUT, 0, x, [64])
    bench.bind(request, Direction.OUTPUT, 0, y, [64])
    return request


@check("request_run")
def is_over_when_it_returns_without_done(bench: Bench) -> None:
    """Many runs, each read right after it."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    x, y = bench.floats([0] * 64), bench.floats([0] * 64)
    request = _bound(bench, program, x, y)
    for number in range(_RUNS):
        bench.write(x, np.full(64, number, np.float32).tobytes())
        bench.run(request, stream)
        expect(bench.read_floats(y, 64).tolist() == [number + 1] * 64, "gave another run's values")


@check("request_run")
def waits_for_earlier_work_without_done(bench: Bench) -> None:
    """The run that waits comes after what was enqueued before it."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    request = _bound(bench, program, bench.floats([1] * 64), bench.floats([0] * 64))
    done = bench.enqueue_busy_work(stream)
    bench.run(request, stream)
    bench.expect_all_done(done, "a run that waits")


@check("request_run")
def tells_done_once_in_order(bench: Bench) -> None:
    """One call for each run that was taken, with its context and NPU_OK."""
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
    expect(not bad, f"`done` told of failures: {bad[:1]}")


@check("request_run")
def keeps_its_place_between_copies(bench: Bench) -> None:
    """Copy in, run, copy out, enqueued at once behind slow work; twenty times over."""
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
    """A program with variables, enqueued in turn on two requests, counts in each apart."""
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
    """Lengths that cannot be added are refused, or fail once; the next run is right."""
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
    """Binds ones; whether the driver refused."""
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
    expect(context == 7 and told != Status.OK, "told of success for lengths that cannot be added")
    expect(bool(message.strip()), "told of a failure without a sentence")


@check("request_run")
def survives_ports_that_were_never_bound(bench: Bench) -> None:
    """The run may fail or use memory of its own; the next, with everything bound, is right."""
    program, stream = bench.load(bench.programs().add_one), bench.stream()
    bench.call("request_run", bench.request(program), stream, NO_DONE, None)
    y = bench.floats([0] * 64)
    bench.run(_bound(bench, program, bench.floats([1] * 64), y), stream)
    expect(bench.read_floats(y, 64)[0] == 2, "gives wrong values after a run with nothing bound")


@check("request_destroy")
def works_inside_the_done_of_its_run(bench: Bench) -> None:
    """The runtime drops a request there when its run failed."""
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
    expect(ended == [Status.OK] * 20, f"{len(ended)} of 20 runs were told of")


@check("request_run")
def works_on_several_threads(bench: Bench) -> None:
    """Four threads, each with its own request and stream, give each its own values."""
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
