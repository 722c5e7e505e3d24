import pytest

from npu_profiler.recording.steps import StepGate


@pytest.fixture
def calls():
    return []


def gate(calls, **options):
    return StepGate(
        **options, on_open=lambda: calls.append("open"), on_close=lambda: calls.append("close")
    )


def test_without_options_all_is_recorded(calls):
    found = gate(calls, warmup=0, steps=0)
    for _ in range(9):
        found.mark("step")
    assert (found.is_open, calls) == (True, [])


def test_warmup_is_left_out_and_the_steps_after_it_are_recorded(calls):
    found = gate(calls, warmup=2, steps=3)
    states = []
    for _ in range(7):
        states.append(found.is_open)
        found.mark("step")
    assert states == [False, False, True, True, True, False, False]
    assert calls == ["open", "close"]
    assert found.is_done


def test_only_the_first_kind_of_mark_counts(calls):
    found = gate(calls, warmup=1, steps=1)
    found.mark("optimizer")
    found.mark("profile.step")
    assert found.is_open
    found.mark("optimizer")
    assert found.is_done
