from npu_profiler.queries.programs import line_rows, module_rows
from npu_profiler.queries.spans import launches
from npu_profiler.reading import load_trace
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")

DEVICE = [
    Slice(PROGRAMS, "program", "graph_0", 60, 10),
    Slice(
        PROGRAMS,
        "layer",
        "mm",
        60,
        8,
        {"duration_us": 0.008, "module": "mlp.up", "line": "model.py:7"},
    ),
]
LAUNCH = [Flow("launch", "launch", FlowEnd(MAIN, 50), FlowEnd(PROGRAMS, 60))]


def call(category, name, start, end, **args):
    return Slice(MAIN, category, name, start, end - start, args or None)


def test_modules_are_of_calls_and_of_layers(write_trace):
    trace = load_trace(
        write_trace(
            slices=[
                call("module", "Model", 0, 100, **{"class": "Model"}),
                call("module", "mlp", 20, 90, **{"class": "MLP"}),
                call("cpu_op", "aten::mm", 40, 55),
                *DEVICE,
            ],
            flows=LAUNCH,
        )
    )
    rows = {row.name: row for row in module_rows(trace, launches(trace))}
    model, mlp, up = rows["Model"], rows["mlp"], rows["mlp.up"]
    assert (model.kind, model.self_ns, model.total_ns, model.device_ns) == ("Model", 30, 100, 10)
    assert (mlp.calls, mlp.self_ns, mlp.device_ns, mlp.layer_ns) == (1, 70, 10, 0)
    assert (up.calls, up.layers, up.layer_ns) == (0, 1, 8)


def test_python_calls_tell_modules_where_nothing_else_does(write_trace):
    trace = load_trace(
        write_trace(
            slices=[
                call("python_function", "nn.Module: Net_0", 0, 100),
                call("python_function", "model.py(3): forward", 10, 90),
                call("python_function", "nn.Module: Linear_1", 20, 60),
            ]
        )
    )
    rows = module_rows(trace, [])
    assert [(row.name, row.self_ns) for row in rows] == [("Net_0", 60), ("Linear_1", 40)]


def test_lines_are_of_python_calls_and_of_layers(write_trace):
    trace = load_trace(
        write_trace(
            slices=[
                call("python_function", "train.py(1): <module>", 0, 100),
                call("python_function", "<built-in method mm>", 20, 90),
                call("python_function", "train.py(9): loss", 92, 97),
                *DEVICE,
            ],
            flows=LAUNCH,
        )
    )
    rows = {row.name: row for row in line_rows(trace, launches(trace))}
    assert rows.keys() == {"train.py(1): <module>", "train.py(9): loss", "model.py:7"}
    assert (rows["train.py(1): <module>"].self_ns, rows["train.py(1): <module>"].device_ns) == (
        95,
        10,
    )
    assert rows["model.py:7"].layer_ns == 8
