"""Ordering between streams, on whichever driver serves (set NPU_DRIVER=sim for the strict one)."""

import threading

import pytest
import torch

import npu_runtime
from npu_runtime import load_program

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def add_one(save_model, add_one_model):
    return load_program(save_model(add_one_model), name="add_one", options=F32)


def run(program: npu_runtime.Program, x: torch.Tensor) -> torch.Tensor:
    return program.run([x])[0]


def test_the_default_stream_is_current_at_first():
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert torch.npu.current_stream().stream_id == 0
    assert torch.npu.current_stream().device == torch.device("npu:0")


def test_a_stream_is_current_inside_with_and_the_one_before_after_it():
    outer, inner = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(outer):
        with torch.npu.stream(inner):
            assert torch.npu.current_stream() == inner
        assert torch.npu.current_stream() == outer
        with torch.npu.stream(None):
            assert torch.npu.current_stream() == outer
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_the_current_stream_is_the_threads_own():
    seen: list[torch.Stream] = []
    with torch.npu.stream(torch.npu.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.npu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.npu.default_stream()]


def test_a_stream_can_be_entered_again_inside_itself_and_by_two_threads():
    shared, own = torch.npu.Stream(), torch.npu.Stream()
    both_inside = threading.Barrier(2)
    seen: list[torch.Stream] = []

    def enter() -> None:
        torch.npu.set_stream(own)
        with torch.npu.stream(shared):
            both_inside.wait()
            seen.append(torch.npu.current_stream())
        seen.append(torch.npu.current_stream())

    thread = threading.Thread(target=enter)
    thread.start()
    with torch.npu.stream(shared):
        with torch.npu.stream(shared):
            both_inside.wait()
        assert torch.npu.current_stream() == shared
    thread.join()
    assert seen == [shared, own]
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_new_streams_differ_and_priorities_have_streams_of_their_own():
    normal = {torch.npu.Stream().stream_id for _ in range(8)}
    high = {torch.npu.Stream(priority=-1).stream_id for _ in range(8)}
    assert len(normal) == len(high) == 8
    assert not normal & high


def test_host_code_sees_the_results_of_pending_programs(add_one, delayed):
    x = torch.zeros(64, device="npu")
    for _ in range(20):
        x = run(add_one, x)
    assert torch.equal(x.cpu(), torch.full((64,), 20.0))
    assert (x + 1).sum().item() == 21 * 64


def test_a_write_from_the_host_waits_for_pending_readers(add_one, delayed):
    for value in range(10):
        x = torch.full((64,), float(value), device="npu")
        result = run(add_one, x)
        x.fill_(-1000)
        assert torch.equal(result.cpu(), torch.full((64,), value + 1.0))


def test_memory_freed_while_work_is_pending_is_not_handed_out(add_one, delayed):
    results = []
    for value in range(30):
        x = torch.full((64,), float(value), device="npu")
        results.append(run(add_one, x))
        del x
        torch.full((64,), -1.0, device="npu")  # would take the block of x, were it free
    for value, result in enumerate(results):
        assert torch.equal(result.cpu(), torch.full((64,), value + 1.0))


def test_wait_stream_orders_two_streams(add_one, delayed):
    first, second = torch.npu.Stream(), torch.npu.Stream()
    for value in range(10):
        with torch.npu.stream(first):
            x = run(add_one, torch.full((64,), float(value), device="npu"))
        second.wait_stream(first)
        with torch.npu.stream(second):
            y = run(add_one, x)
        assert torch.equal(y.cpu(), torch.full((64,), value + 2.0))


def test_wait_event_orders_after_the_recorded_point(add_one, delayed):
    first, second = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(first):
        x = run(add_one, torch.zeros(64, device="npu"))
        event = first.record_event()
    second.wait_event(event)
    with torch.npu.stream(second):
        y = run(add_one, x)
    second.synchronize()
    assert event.query()
    assert torch.equal(y.cpu(), torch.full((64,), 2.0))


def test_synchronize_leaves_the_stream_idle(add_one, delayed):
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        x = torch.zeros(64, device="npu")
        for _ in range(5):
            x = run(add_one, x)
    stream.synchronize()
    assert stream.query()
    torch.npu.synchronize()
    torch.accelerator.synchronize()


def test_events_time_the_work_between_them(add_one, delayed):
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    x = torch.zeros(64, device="npu")
    start.record()
    for _ in range(5):
        x = run(add_one, x)
    end.record()
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000


def test_an_event_that_was_never_recorded_is_done_and_has_no_time():
    event, other = (torch.npu.Event(enable_timing=True) for _ in range(2))
    assert event.query()
    event.synchronize()
    torch.npu.current_stream().wait_event(event)
    with pytest.raises((RuntimeError, ValueError), match="record"):
        event.elapsed_time(other)


def test_an_event_is_recorded_on_streams_of_its_own_device_only(run_python):
    code = """
import torch

event = torch.Event("npu:0")
event.record(torch.npu.Stream(device=0))
try:
    event.record(torch.npu.Stream(device=1))
except RuntimeError as error:
    print(error)
"""
    done = run_python(code, NPU_DRIVER="sim", NPU_DEVICE="SIM2")
    assert done.stdout.strip().endswith("got one on npu:1. Record the event there. [event-device]")


def test_record_stream_takes_a_stream_of_the_device():
    x = torch.ones(64, device="npu")
    x.record_stream(torch.npu.Stream())
    assert x.sum().item() == 64


def test_sessions_keep_their_order_across_streams(save_model, counter_model, delayed):
    session = load_program(save_model(counter_model), name="counter", options=F32).session()
    step = torch.ones(2, device="npu")
    streams = [torch.npu.Stream() for _ in range(3)]
    for count in range(1, 10):
        with torch.npu.stream(streams[count % 3]):
            total = session.run([step])[0]
        assert torch.equal(total.cpu(), torch.full((2,), float(count)))


def test_launch_blocking_runs_inline(run_python, save_model, add_one_model):
    path = save_model(add_one_model)
    done = run_python(
        "import torch, npu_runtime, npu_runtime.sim\n"
        f"p = npu_runtime.load_program({str(path)!r}, name='p', options={F32!r})\n"
        "with npu_runtime.sim.delay(20000, 20000):\n"
        "    y = p.run([torch.zeros(64, device='npu')])[0]\n"
        "    print(torch.npu.current_stream().query(), y.sum().item())",
        NPU_DRIVER="sim",
        NPU_LAUNCH_BLOCKING="1",
    )
    assert done.stdout.split() == ["True", "64.0"], done.stderr


def test_threads_on_streams_of_their_own_do_not_disturb_each_other(add_one, delayed):
    wrong: list[float] = []

    def work(seed: int) -> None:
        streams = [torch.npu.Stream() for _ in range(4)]
        for turn in range(10):
            start = float(seed * 100 + turn)
            x = torch.full((64,), start, device="npu")
            for index, stream in enumerate(streams):
                if index:
                    stream.wait_stream(streams[index - 1])
                with torch.npu.stream(stream):
                    x = run(add_one, x)
            if not torch.equal(x.cpu(), torch.full((64,), start + 4)):
                wrong.append(start)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_part_that_came_over_dlpack_waits_as_the_whole_does(add_one, delayed):
    for value in range(10):
        x = run(add_one, torch.full((64,), float(value), device="npu"))
        part = torch.from_dlpack(x[32:])  # a storage that begins inside the block
        assert torch.equal(part.cpu(), torch.full((32,), value + 1.0))


def test_a_part_that_came_over_dlpack_keeps_the_whole_for_a_pending_program(
    save_model, add_one_model, delayed
):
    add_one = load_program(save_model(add_one_model), name="add_one", options=F32)
    for value in range(10):
        part = torch.from_dlpack(torch.full((128,), float(value), device="npu")[64:])
        result = run(add_one, part)
        del part
        torch.full((128,), -1.0, device="npu")  # would take the block, were it free
        assert torch.equal(result.cpu(), torch.full((64,), value + 1.0))


def test_growing_a_tensor_waits_for_the_program_that_writes_it(add_one, delayed):
    for value in range(10):
        x = run(add_one, torch.full((64,), float(value), device="npu"))
        x.resize_(5000)
        assert torch.equal(x[:64].cpu(), torch.full((64,), value + 1.0))
