import importlib
import sys

import pytest

from npu_profiler.listeners.import_calls import ImportCalls

SLOW = "import time\ntime.sleep(0.003)\n"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A package whose module imports another package, and one that fails."""
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
def calls():
    listening = ImportCalls()
    listening.start()
    yield listening
    listening.stop()


def test_an_import_is_told_with_those_of_other_packages_within_it(packages, calls):
    importlib.import_module("outer_package")
    inner, outer = [one for one in calls.take() if one.name.endswith("_package")]
    assert (inner.name, outer.name) == ("inner_package", "outer_package")
    assert outer.start_ns < inner.start_ns < inner.end_ns <= outer.end_ns
    assert outer.end_ns - outer.start_ns >= 9_000_000


def test_an_import_that_fails_is_told_and_its_traceback_has_no_frame_of_ours(packages, calls):
    with pytest.raises(ZeroDivisionError) as raised:
        import failing_package  # noqa: F401
    files = [frame.path.name for frame in raised.traceback]
    assert files == ["test_import_calls.py", "__init__.py"]
    assert [one.name for one in calls.take()] == ["failing_package"]


def test_what_is_loaded_or_quick_is_not_told_and_after_the_end_nothing_is(packages, calls):
    importlib.import_module("quick_package")
    assert [one.name for one in calls.take() if one.name == "quick_package"] == []
    before = sys.modules["_frozen_importlib"]._find_and_load
    calls.stop()
    assert sys.modules["_frozen_importlib"]._find_and_load is not before
    importlib.import_module("outer_package")
    assert calls.take() == []
