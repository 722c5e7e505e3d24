import pytest

from npu_profiler.comparison import (
    block_means,
    compare_calls,
    compare_steps,
    compare_totals,
    noise_of_means,
    noise_of_medians,
    shared_step,
    t_bound,
    take_samples,
)
from npu_profiler.reading import load_trace
from npu_profiler.trace_format.timeline import Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
STEPS = Track(1, 9, "prefill and decode", "python x.py")
JITTER = (0, 7, 3, 9, 1, 5, 8, 2)


@pytest.fixture
def samples(write_trace):
    def take(*times, calls=1, steps=True):
        """Steps with this many calls of aten::mm, with the time given step by step."""
        slices = []
        for at, time in enumerate(times):
            start = at * 100_000
            if steps:
                slices.append(Slice(STEPS, "decode", "decode", start, 90_000))
            slices += [
                Slice(MAIN, "cpu_op", "aten::mm", start + n * 10_000, time) for n in range(calls)
            ]
        return take_samples(load_trace(write_trace(slices=slices)))

    return take


def only(rows):
    (row,) = rows
    return row


@pytest.mark.parametrize("steps", [True, False], ids=["steps", "no steps"])
@pytest.mark.parametrize(
    "shift, verdict", [(0, "within noise"), (3, "within noise"), (100, "slower"), (-100, "faster")]
)
def test_difference_between_two_traces_is_held_against_that_between_steps(
    samples, steps, shift, verdict
):
    base = samples(*(1_000 + jitter for jitter in JITTER), steps=steps)
    new = samples(*(1_000 + shift + jitter for jitter in reversed(JITTER)), steps=steps)
    row = only(compare_calls([base], [new], "op", step=shared_step([base, new])))
    assert (row.name, row.verdict) == ("aten::mm", verdict)
    assert row.change == pytest.approx(shift / 1_004, abs=1e-3)


def test_one_slow_step_is_no_change(samples):
    base = samples(*(1_000 + jitter for jitter in JITTER))
    new = samples(*(1_000 + jitter for jitter in JITTER[:-1]), 9_000)
    assert only(compare_calls([base], [new], "op", step="decode")).verdict == "within noise"


def test_several_traces_are_held_against_the_difference_between_them(samples):
    base = [samples(*[time] * 4) for time in (1_000, 1_100, 900)]
    near = [samples(*[time] * 4) for time in (1_050, 1_150, 950)]
    far = [samples(*[time] * 4) for time in (2_000, 2_100, 1_900)]
    assert only(compare_calls(base, near, "op", step="decode")).verdict == "within noise"
    row = only(compare_calls(base, far, "op", step="decode"))
    assert (row.verdict, row.base_ns, row.new_ns) == ("slower", 1_000, 2_000)


def test_more_calls_have_an_impact_without_being_slower(samples):
    base = samples(*(1_000 + jitter for jitter in JITTER))
    new = samples(*(1_000 + jitter for jitter in JITTER), calls=3)
    row = only(compare_calls([base], [new], "op", step="decode"))
    assert (row.base_calls, row.new_calls, row.verdict) == (1, 3, "within noise")
    assert row.total_ns == pytest.approx(2 * row.base_ns)


def test_what_is_only_on_one_side_is_new_or_gone(samples):
    some, none = samples(1_000, 1_000), samples(1_000, 1_000, calls=0)
    assert only(compare_calls([some], [none], "op", step="decode")).verdict == "gone"
    row = only(compare_calls([none], [some], "op", step="decode"))
    assert (row.verdict, row.change, row.total_ns) == ("new", None, 1_000)


def test_whole_traces_have_noise_when_there_are_several(samples):
    once, again = samples(1_000, 1_000), samples(1_000, 1_000, 1_000)
    assert {row.verdict for row in compare_totals([once], [again])} == {"noise unknown"}
    rows = {row.name: row for row in compare_totals([once, once], [again, again])}
    assert (rows["host in ops"].base_ns, rows["host in ops"].new_ns) == (2_000, 3_000)
    assert rows["wall time"].verdict == "slower"


def test_steps_are_compared_by_kind(samples):
    row = only(compare_steps([samples(1, 1)], [samples(2, 2, 2)]))
    assert (row.name, row.base_ns, row.verdict) == ("decode", 90_000, "within noise")


# Two-sided bounds of Student's t at 99 %, as statistical tables have them.
@pytest.mark.parametrize(
    "freedom, bound", [(1, 63.657), (2, 9.925), (4, 4.604), (18, 2.878), (100, 2.626)]
)
def test_bounds_are_those_of_students_table(freedom, bound):
    assert t_bound(freedom) == pytest.approx(bound, abs=1e-3)


def test_bound_follows_the_confidence():
    assert t_bound(10, 0.95) == pytest.approx(2.228, abs=1e-3)


def test_noise_of_means_is_the_pooled_interval():
    # Variance 1 on both sides: bound(4) * sqrt(1/3 + 1/3).
    assert noise_of_means([1, 2, 3], [11, 12, 13]) == pytest.approx(4.604 * (2 / 3) ** 0.5, 1e-3)


def test_noise_of_one_value_each_is_unknown():
    assert noise_of_means([1], [2]) is None
    assert noise_of_medians([1], [2, 3]) is None
    assert noise_of_means([1], [2, 3]) is not None


def test_value_far_off_does_not_widen_the_noise_of_medians():
    quiet = [10.0, 11, 10, 9, 10, 11, 9, 10, 11, 9]
    loud = [*quiet[:-1], 1_000.0]
    assert noise_of_medians(quiet, loud) < 3 < noise_of_means(quiet, loud)


def test_blocks_hold_each_value_once():
    assert block_means(range(10), 5) == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert block_means([1, 2, 3], 2) == [1, 2, 3]
