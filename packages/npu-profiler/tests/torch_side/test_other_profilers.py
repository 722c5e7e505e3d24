import pytest
import torch.profiler
from torch.autograd import profiler

from npu_profiler.torch_side.other_profilers import step_aside


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
