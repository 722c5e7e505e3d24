import pytest
import torch

from npu_runtime import _C, ProgramError, load_program

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def add_one(save_model, add_one_model):
    program = load_program(save_model(add_one_model), name="add_one", options=F32)
    _C.set_sanitizer(True)
    yield program
    _C.set_sanitizer(False)


@pytest.fixture
def two_streams():
    return torch.npu.Stream(), torch.npu.Stream()


def test_a_missing_wait_is_reported_with_both_stacks(add_one, two_streams):
    first, second = two_streams
    x = torch.zeros(64, device="npu")
    with torch.npu.stream(first):
        y = add_one.run([x])[0]  # the write
    with torch.npu.stream(second), pytest.raises(ProgramError, match="stream-race") as caught:
        add_one.run([y])
    text = str(caught.value)
    assert f"on stream {second.stream_id} reads" in text
    assert f"on stream {first.stream_id} writes" in text
    assert text.count("test_sanitizer.py:") >= 2
    assert caught.value.code == "stream-race"


@pytest.mark.parametrize("order", ["wait_stream", "wait_event", "synchronize", "host"])
def test_every_way_to_wait_satisfies_it(add_one, two_streams, order):
    first, second = two_streams
    with torch.npu.stream(first):
        y = add_one.run([torch.zeros(64, device="npu")])[0]
        event = first.record_event()
    if order == "wait_stream":
        second.wait_stream(first)
    elif order == "wait_event":
        second.wait_event(event)
    elif order == "synchronize":
        first.synchronize()
    else:
        assert y.sum().item() == 64
    with torch.npu.stream(second):
        assert add_one.run([y])[0].sum().item() == 128


def test_writing_what_another_stream_reads_is_reported(add_one, two_streams):
    first, second = two_streams
    x, target = torch.zeros(64, device="npu"), torch.zeros(64, device="npu")
    with torch.npu.stream(first):
        add_one.run([target])
    with torch.npu.stream(second), pytest.raises(ProgramError, match=r"writes memory .* reads"):
        add_one.run([x], outputs=[target])


def test_two_readers_need_no_order(add_one, two_streams):
    x = torch.zeros(64, device="npu")
    results = []
    for stream in two_streams:
        with torch.npu.stream(stream):
            results.append(add_one.run([x])[0])
    assert [result.sum().item() for result in results] == [64, 64]


def test_reused_memory_has_no_history(add_one, two_streams):
    first, second = two_streams
    for _ in range(5):
        with torch.npu.stream(first):
            y = add_one.run([torch.zeros(64, device="npu")])[0]
        assert y.sum().item() == 64
        del y
        with torch.npu.stream(second):
            assert add_one.run([torch.ones(64, device="npu")])[0].sum().item() == 128


def test_a_wait_for_an_earlier_point_is_not_enough(add_one, two_streams):
    first, second = two_streams
    with torch.npu.stream(first):
        add_one.run([torch.zeros(64, device="npu")])
        early = first.record_event()
        y = add_one.run([torch.zeros(64, device="npu")])[0]
    second.wait_event(early)
    with torch.npu.stream(second), pytest.raises(ProgramError, match="stream-race"):
        add_one.run([y])
