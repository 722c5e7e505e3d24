"""Calls of modules and imports that a recording hears of."""

import gc
import importlib
import sys
import threading
import warnings

import pytest
import torch

from npu_profiler.listeners.calls import ImportCalls, ModuleCalls


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.mlp(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Failing(torch.nn.Module):
    def __init__(self, error):
        super().__init__()
        self.relu = torch.nn.ReLU()
        self.error = error

    def forward(self, x):
        self.relu(x)
        raise self.error


X = torch.ones(2, 4)


@pytest.fixture
def calls():
    recorded = ModuleCalls()
    recorded.start()
    yield recorded
    recorded.stop()


def paths(calls):
    return [call.path for call in sorted(calls.take(), key=lambda call: call.start_ns)]


def test_calls_have_paths_in_their_root_model_and_classes(calls):
    Model()(X)
    found = sorted(calls.take(), key=lambda call: call.start_ns)
    assert [(call.path, call.class_name) for call in found] == [
        ("Model", "Model"),
        ("layers.0", "Block"),
        ("layers.0.mlp", "Linear"),
        ("layers.1", "Block"),
        ("layers.1.mlp", "Linear"),
    ]
    assert {call.root_name for call in found} == {"Model"}
    outer, inner = found[0], found[1:]
    assert all(outer.start_ns <= call.start_ns <= call.end_ns <= outer.end_ns for call in inner)


def test_part_that_was_called_alone_is_named_in_the_model_that_is_called_later(calls):
    model = Model()
    model.layers[1](X)
    assert paths(calls) == ["Block", "mlp"]
    model(X)
    assert "layers.1.mlp" in paths(calls)
    model.layers[1](X)
    assert paths(calls) == ["layers.1", "layers.1.mlp"]


def test_module_that_raises_has_its_call_and_its_error(calls):
    failing = Failing(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        failing(X)
    assert paths(calls) == ["Failing", "relu"]
    Model()(X)
    assert paths(calls)[0] == "Model"


def test_calls_that_an_interrupt_ends_do_not_outlive_the_one_around_them(calls):
    inner = Failing(KeyboardInterrupt())

    class Outer(torch.nn.Module):
        def forward(self, x):
            with pytest.raises(KeyboardInterrupt):
                inner(x)
            return x

    Outer()(X)
    found = {call.path: call for call in calls.take()}
    assert found.keys() == {"Outer", "Failing", "relu"}
    assert found["Failing"].end_ns <= found["Outer"].end_ns


def test_each_thread_has_its_calls(calls):
    model = Model()
    threads = [threading.Thread(target=model, args=(X,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_thread = {}
    for call in calls.take():
        by_thread.setdefault(call.thread_id, []).append(call.path)
    assert by_thread.keys() == {thread.native_id for thread in threads}
    assert all(len(of_thread) == 5 for of_thread in by_thread.values())


def test_call_under_way_at_the_end_ends_there():
    recorded = ModuleCalls()

    class Ending(torch.nn.Module):
        def forward(self, x):
            recorded.stop()
            return x

    recorded.start()
    Ending()(X)
    (call,) = recorded.take()
    assert call.path == "Ending"
    assert call.end_ns >= call.start_ns


def test_call_that_began_before_the_recording_is_not_in_it():
    recorded = ModuleCalls()

    class Starting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = torch.nn.ReLU()

        def forward(self, x):
            recorded.start()
            return self.relu(x)

    Starting()(X)
    recorded.stop()
    assert paths(recorded) == ["ReLU"]


def test_nothing_is_hooked_before_and_after():
    module = torch.nn.modules.module
    has_any_hook = module._has_any_global_hook
    recorded = ModuleCalls()
    recorded.start()
    assert module._global_forward_pre_hooks
    recorded.stop()
    assert not module._global_forward_pre_hooks
    assert not module._global_forward_hooks
    assert module._has_any_global_hook is has_any_hook
    Model()(X)
    assert recorded.take() == []


def test_results_are_equal_and_modules_are_not_kept(calls):
    torch.manual_seed(0)
    model = Model()
    seen = model(X)
    calls.stop()
    assert torch.equal(seen, model(X))
    calls.start()
    names = len(calls._names)
    del model
    gc.collect()
    assert len(calls._names) == names - 6


def test_calls_past_the_limit_are_counted():
    recorded = ModuleCalls(max_calls=3)
    recorded.start()
    Model()(X)
    recorded.stop()
    assert len(recorded.take()) == 3
    assert recorded.dropped == 2


def test_compiled_model_warns_of_no_hooks_and_shows_as_itself(calls):
    compiled = torch.compile(Model(), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(X)
    assert set(paths(calls)) == {"Model"}


def test_later_windows_compile_nothing_again():
    compiled = torch.compile(Model(), backend="eager")
    counted = torch._dynamo.utils.counters["stats"]
    recorded = ModuleCalls()
    graphs = []
    for _ in range(3):
        recorded.start()
        compiled(X)
        recorded.stop()
        compiled(X)
        graphs.append(counted["unique_graphs"])
    assert graphs[0] == graphs[1] == graphs[2]


SLOW = "import time\ntime.sleep(0.003)\n"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A package with a module that imports another package, and one that fails."""
    for name, source in {
        "outer_package/__init__.py": f"{SLOW}from outer_package import part\n",
        "outer_package/part.py": f"{SLOW}import inner_package\n",
        "inner_package/__init__.py": SLOW,
        "failing_package/__init__.py": f"{SLOW}1 / 0\n",
        "quick_package/__init__.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("_package")]:
        del sys.modules[name]


@pytest.fixture
def import_calls():
    listening = ImportCalls()
    listening.start()
    yield listening
    listening.stop()


def test_an_import_is_told_with_those_of_other_packages_within_it(packages, import_calls):
    importlib.import_module("outer_package")
    inner, outer = [one for one in import_calls.take() if one.name.endswith("_package")]
    assert (inner.name, outer.name) == ("inner_package", "outer_package")
    assert outer.start_ns < inner.start_ns < inner.end_ns <= outer.end_ns
    assert outer.end_ns - outer.start_ns >= 9_000_000


def test_an_import_that_fails_is_told_and_its_traceback_has_no_frame_of_ours(
    packages, import_calls
):
    with pytest.raises(ZeroDivisionError) as raised:
        import failing_package  # noqa: F401
    files = [frame.path.name for frame in raised.traceback]
    assert files == ["test_calls.py", "__init__.py"]
    assert [one.name for one in import_calls.take()] == ["failing_package"]


def test_what_is_loaded_or_quick_is_not_told_and_after_the_end_nothing_is(packages, import_calls):
    importlib.import_module("quick_package")
    assert [one.name for one in import_calls.take() if one.name == "quick_package"] == []
    before = sys.modules["_frozen_importlib"]._find_and_load
    import_calls.stop()
    assert sys.modules["_frozen_importlib"]._find_and_load is not before
    importlib.import_module("outer_package")
    assert import_calls.take() == []
