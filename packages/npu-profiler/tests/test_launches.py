from npu_profiler.launches import Launched, connect_launches
from npu_profiler.timeline import Slice, Track

MAIN = Track(1, 1, "main thread", "python")
STEPS = Track(1, 99, "prefill and decode", "python")
DEVICE = Track(1000, 1, "programs", "npu:0")


def piece(name, start, end, track=MAIN, category="cpu_op"):
    return Slice(track, category, name, start, end - start)


def connect(host, programs, callers=None):
    return connect_launches(
        host,
        callers=callers or {},
        programs=[
            Launched(program, thread, asked[0] if asked else program.start_ns)
            for program, thread, *asked in programs
        ],
        thread_track=lambda thread_id: Track(1, thread_id, f"thread {thread_id}", "python"),
    )


def test_arrow_comes_from_the_innermost_op():
    host = [piece("outer", 0, 100), piece("inner", 10, 50), piece("done", 12, 14)]
    launches, flows = connect(host, [(piece("p", 20, 40, DEVICE, "program"), 1)])
    assert launches == []
    (flow,) = flows
    assert (flow.source.track, flow.source.time_ns) == (MAIN, 20)
    assert (flow.target.track, flow.target.time_ns) == (DEVICE, 20)


def test_program_outside_of_any_op_gets_a_launch_slice():
    host = [piece("before", 0, 10), piece("other thread", 0, 100, Track(1, 2, "t", "python"))]
    launches, flows = connect(host, [(piece("p", 20, 40, DEVICE, "program"), 1)])
    (launch,) = launches
    assert (launch.name, launch.start_ns, launch.end_ns) == ("launch p", 20, 40)
    assert flows[0].source.track == launch.track


def test_arrow_comes_from_a_step_of_the_same_thread():
    step = piece("decode", 0, 100, STEPS, "llm")
    launches, flows = connect(
        [step], [(piece("p", 20, 40, DEVICE, "program"), 7)], callers={id(step): 7}
    )
    assert launches == []
    assert flows[0].source.track == STEPS


def test_slice_that_crosses_its_parent_does_not_hide_it():
    host = [piece("outer", 0, 100), piece("crossing", 90, 101), piece("op", 10, 30)]
    _, flows = connect(host, [(piece("p", t, t + 1, DEVICE, "program"), 1) for t in (20, 40, 95)])
    assert [flow.source.time_ns for flow in flows] == [20, 40, 95]


def test_arrow_to_an_enqueued_program_comes_from_the_op_that_enqueued_it():
    host = [piece("enqueues", 0, 10), piece("later", 12, 60)]
    launches, flows = connect(host, [(piece("p", 20, 40, DEVICE, "program"), 1, 5)])
    assert launches == []
    (flow,) = flows
    assert (flow.source.track, flow.source.time_ns) == (MAIN, 5)
    assert (flow.target.track, flow.target.time_ns) == (DEVICE, 20)


def test_enqueued_program_outside_of_any_op_gets_a_launch_slice_where_it_was_enqueued():
    launches, flows = connect([], [(piece("p", 20, 40, DEVICE, "program"), 1, 5)])
    (launch,) = launches
    assert (launch.name, launch.start_ns, launch.duration_ns) == ("launch p", 5, 0)
    assert flows[0].source.time_ns == 5
