import pytest
import torch  # noqa: F401  # autoloads npu_runtime

from npu_profiler.tracks import DEVICE_PID, Tracks
from npu_runtime.observe import Event


def span(name, start, end, *, category="program", thread_id=1, **args):
    return Event("span", category, name, start, end - start, thread_id, args=args)


@pytest.fixture
def tracks():
    return Tracks(pid=1, program="x.py", thread_names={2: "loader", 3: "python"})


def rows(placed):
    return {event.name: item.track.name for item, event in placed}


def test_threads_have_names(tracks):
    assert tracks.thread(1).name == "main thread"
    assert tracks.thread(2).name == "loader"
    assert tracks.thread(3).name == "thread 3"
    assert tracks.thread(1).process == "python x.py"


def test_process_is_there_when_nothing_was_heard(tracks):
    assert [track.process for track in tracks.all()] == ["python x.py"]


def test_programs_that_overlap_stand_on_rows_of_their_own(tracks):
    placed = tracks.place_on_device(
        [span("a", 0, 10), span("b", 5, 8, thread_id=2), span("c", 10, 12)]
    )
    assert rows(placed) == {"a": "programs", "b": "programs (2)", "c": "programs"}
    assert {item.track.pid for item, _ in placed} == {DEVICE_PID}


def test_phase_within_a_phase_of_the_same_thread_shares_its_row(tracks):
    placed = tracks.place_on_host(
        [
            span("compile", 0, 10, category="compile"),
            span("lower", 2, 4, category="compile"),
            span("other", 3, 5, category="compile", thread_id=2),
        ]
    )
    assert rows(placed) == {
        "compile": "compile phases",
        "lower": "compile phases",
        "other": "compile phases (2)",
    }


def test_steps_share_a_row_and_stand_above_threads(tracks):
    placed = tracks.place_on_host(
        [span("prompt", 0, 4, category="prefill"), span("token", 5, 6, category="decode")]
    )
    assert set(rows(placed).values()) == {"prefill and decode"}
    assert [track.name for track in tracks.all()] == ["prefill and decode", "main thread"]


def test_each_device_is_a_process(tracks):
    placed = tracks.place_on_device([span("a", 0, 1), span("b", 0, 1, device_index=1)])
    assert [item.track.process for item, _ in placed] == ["npu:0", "npu:1"]
    assert [item.track.name for item, _ in placed] == ["programs", "programs"]


def test_rows_are_given_out_once(tracks):
    assert tracks.thread(2) is tracks.thread(2)
    assert tracks.host("compile") is tracks.host("compile")
    assert tracks.host("compile").tid != tracks.host("other").tid
