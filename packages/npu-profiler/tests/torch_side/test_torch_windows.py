"""Windows of torch's profiler, also next to the program's."""

import pytest
import torch.profiler
from torch.autograd import profiler

from npu_profiler.torch_side.torch_windows import step_aside

PROLOGUE = """
import threading, time
import torch
from pathlib import Path
from npu_profiler.torch_side.torch_windows import TorchWindows
from npu_profiler.torch_side.kineto_file import align
ops = TorchWindows(Path("scratch-"))
names = lambda window: [item.name for item in window.recorded.slices]
"""


@pytest.fixture
def run(run_lines):
    return lambda body: run_lines(PROLOGUE + body)


def test_ops_of_all_threads_are_recorded(run):
    (line,) = run("""
go = threading.Event()
early = threading.Thread(target=lambda: (go.wait(), torch.ones(2).cos()))
early.start()
ops.start()
late = threading.Thread(target=lambda: torch.ones(2).sin())
late.start(); late.join(); go.set(); early.join()
torch.ones(2).tan()
ops.stop()
(window,) = ops.read()
threads = {item.name: item.thread_id for item in window.recorded.slices}
print(threads["aten::cos"] == early.native_id, threads["aten::sin"] == late.native_id,
      threads["aten::tan"] == threading.main_thread().native_id)
""")
    assert line == "True True True"


def test_clock_error_is_below_ten_microseconds_and_marks_are_not_shown(run):
    error, shown = run("""
ops.start()
torch.ones(2).sin()
ops.stop()
(window,) = ops.read()
found = align(window.marks)
print(abs(found.offset_ns) + found.error_ns < 10_000)
print([name for name in names(window) if "npu_profiler::clock" in name], len(window.marks))
""")
    assert error == "True"
    assert shown == "[] 32"


def test_ops_keep_their_order_against_the_system_clock(run):
    (line,) = run("""
ops.start()
x = torch.ones(2)
brackets = []
for _ in range(100):
    before = time.time_ns(); torch.sin(x); brackets.append((before, time.time_ns()))
ops.stop()
(window,) = ops.read()
error = align(window.marks).error_ns
found = [item for item in window.recorded.slices if item.name == "aten::sin"]
print(len(found), all(before - error <= item.start_ns <= after + error
          for item, (before, after) in zip(found, brackets)))
""")
    assert line == "100 True"


def test_program_may_profile_itself_and_ours_steps_aside(run):
    theirs, first, second, left = run("""
from torch.profiler import profile, ProfilerActivity
ops.start()
torch.ones(2).sin()
with profile(activities=[ProfilerActivity.CPU]) as own:
    torch.ones(2).cos()
torch.ones(2).tan()
ops.stop()
print("aten::cos" in [item.key for item in own.key_averages()])
one, two = ops.read()
print("aten::sin" in names(one), "aten::cos" in names(one))
print("aten::tan" in names(two), "aten::cos" in names(two))
print(list(Path().glob('scratch-*')), ops.problems)
""")
    assert theirs == "True"
    assert first == "True False"
    assert second == "True False"
    assert left == "[] []"


def test_recording_goes_on_while_there_is_memory(run):
    (line,) = run("""
ops.start()
ops.keep_bounded()
torch.ones(2).sin()
ops.stop()
(window,) = ops.read()
print("aten::sin" in names(window), ops.problems)
""")
    assert line == "True []"


def test_recording_of_ops_ends_when_memory_runs_short_and_says_so(run):
    windows, problem = run("""
from npu_profiler.torch_side import torch_windows
torch_windows.RESERVE_BYTES = 1 << 60
ops.start()
ops.keep_bounded()
torch.ones(2).cos()
ops.stop()
print(len(ops.read()))
print(ops.problems[0])
""")
    assert windows == "1"
    assert "aten ops after memory ran short" in problem


def test_torch_is_as_before_afterwards(run):
    (line,) = run("""
from torch.autograd.profiler import profile
before = profile._prepare_trace, profile.__exit__
ops.start()
during = profile._prepare_trace, profile.__exit__
ops.stop()
print(before == (profile._prepare_trace, profile.__exit__), before == during)
""")
    assert line == "True False"


def test_kineto_keeps_silent_and_the_environment_is_as_before(run):
    # A process's output to stderr is in the same list.
    assert run("ops.start(); print(os.environ.get('KINETO_LOG_LEVEL')); ops.stop()") == ["None"]


@pytest.fixture
def calls():
    made = []
    restore = step_aside(
        lambda profile: False, lambda: made.append("pause"), lambda: made.append("resume")
    )
    yield made
    restore()


def test_every_way_to_profile_pauses_and_resumes(calls):
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True):
        assert calls == ["pause"]
    assert calls == ["pause", "resume"]
    with profiler.profile(use_kineto=True):
        assert calls == ["pause", "resume", "pause"]
    assert calls == ["pause", "resume", "pause", "resume"]


def test_a_switched_off_profiler_changes_nothing(calls):
    with profiler.profile(enabled=False):
        pass
    assert calls == []


def test_restoring_brings_torch_back():
    before = profiler.profile._prepare_trace, profiler.profile.__exit__
    restore = step_aside(lambda profile: False, lambda: None, lambda: None)
    assert profiler.profile._prepare_trace is not before[0]
    restore()
    assert (profiler.profile._prepare_trace, profiler.profile.__exit__) == before
