"""Actions at a first import, lazy names of packages, and starts that a command defers."""

import contextlib
import importlib
import importlib.resources
import importlib.util
import sys

import pytest

from npu_command.import_hooks import when_imported, while_importing

# A package with lazy names that starts something, one in it, and a module that names both.
PACKAGES = """
import sys
from pathlib import Path
top = Path({place!r})
made = top / "npu_made"
(made / "inner").mkdir(parents=True)
(made / "__init__.py").write_text(
    "from npu_command.import_hooks import lazy_names, start\\n"
    "__getattr__ = lazy_names(__name__, {{'VALUE': 'value', 'inner': None}})\\n"
    "start(lambda: print('npu_made'))"
)
(made / "value.py").write_text("VALUE = 1")
(made / "inner" / "__init__.py").write_text(
    "from npu_command.import_hooks import start; import npu_made; start(lambda: print('inner'))"
)
(made / "inner" / "leaf.py").write_text("print('leaf'); import npu_made")
sys.path.insert(0, str(top))
from npu_command.import_hooks import deferred_starts, is_deferred, start_packages
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "hooked_package").mkdir()
    (tmp_path / "hooked_package" / "__init__.py").write_text("value = 7\n")
    (tmp_path / "hooked_package" / "data.txt").write_text("here")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield "hooked_package"
    for name in [name for name in sys.modules if name.startswith("hooked_package")]:
        del sys.modules[name]
    sys.meta_path[:] = finders


def test_the_action_is_called_once_and_after_the_module_is_complete(package):
    seen = []
    when_imported(package, lambda: seen.append(sys.modules[package].value))
    importlib.import_module(package)
    importlib.reload(sys.modules[package])
    assert seen == [7]


def test_the_action_is_called_at_once_for_a_module_that_is_loaded(package):
    importlib.import_module(package)
    seen = []
    when_imported(package, lambda: seen.append(1))
    assert seen == [1]


def test_several_actions_of_one_module_are_all_called(package):
    seen = []
    when_imported(package, lambda: seen.append(1))
    when_imported(package, lambda: seen.append(2))
    importlib.import_module(package)
    assert sorted(seen) == [1, 2]


def test_the_import_runs_inside_the_context(package):
    seen = []

    @contextlib.contextmanager
    def around():
        seen.append(hasattr(sys.modules[package], "value"))
        yield
        seen.append(hasattr(sys.modules[package], "value"))

    while_importing(package, around)
    importlib.import_module(package)
    assert seen == [False, True]


def test_the_module_keeps_its_own_loader(package):
    when_imported(package, lambda: None)
    module = importlib.import_module(package)
    assert type(module.__loader__).__module__ != "npu_command.import_hooks"
    assert type(module.__spec__.loader).__module__ != "npu_command.import_hooks"
    assert (importlib.resources.files(package) / "data.txt").read_text() == "here"


def test_an_action_that_is_stopped_is_not_called(package):
    seen = []
    stop = when_imported(package, lambda: seen.append(1))
    stop()
    stop()
    importlib.import_module(package)
    assert seen == []


def test_an_action_that_is_stopped_while_the_spec_is_known_is_not_called(package):
    seen = []
    stop = when_imported(package, lambda: seen.append(1))
    spec = importlib.util.find_spec(package)
    stop()
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == []


def test_a_program_that_only_asks_whether_a_module_is_there_leaves_the_action_waiting(package):
    seen = []
    when_imported(package, lambda: seen.append(1))
    assert importlib.util.find_spec(package) is not None
    assert seen == []
    importlib.import_module(package)
    assert seen == [1]


def test_an_import_that_failed_leaves_the_action_waiting(package, tmp_path):
    source = tmp_path / package / "__init__.py"
    source.write_text("raise RuntimeError('not yet')")
    seen = []
    when_imported(package, lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(package)
    assert seen == []
    source.write_text("value = 7  # whole now, and of another length\n")
    importlib.import_module(package)
    assert seen == [1]


def test_a_module_that_is_missing_is_missed(package):
    when_imported("no_such_module_anywhere", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")


def when_imported_of(name, seen):
    return lambda: when_imported(name, lambda: seen.append(sys.modules[name].value))


def test_a_module_whose_import_has_begun_is_waited_for_until_another_is_looked_for(
    package, tmp_path, monkeypatch
):
    seen, finders = [], list(sys.meta_path)
    monkeypatch.setattr(sys, "wait_for_it", when_imported_of(package, seen), raising=False)
    (tmp_path / package / "__init__.py").write_text(
        "import sys\nsys.wait_for_it()\nfrom hooked_package import part\nvalue = 7\n"
    )
    (tmp_path / package / "part.py").write_text("")
    module = importlib.import_module(package)
    assert module.part.__name__ == "hooked_package.part"
    assert seen == []
    assert importlib.util.find_spec("hooked_package.part_of_none") is None
    assert seen == [7]
    assert sys.meta_path == finders


def test_the_module_that_ends_a_wait_is_found(package, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "wait_for_it", when_imported_of(package, seen), raising=False)
    (tmp_path / package / "__init__.py").write_text("import sys\nsys.wait_for_it()\nvalue = 7\n")
    (tmp_path / package / "part.py").write_text("value = 8\n")
    importlib.import_module(package)
    assert importlib.import_module("hooked_package.part").value == 8
    assert seen == [7]


def test_a_wait_for_an_import_that_fails_goes_on(package, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "wait_for_it", when_imported_of(package, seen), raising=False)
    source = tmp_path / package / "__init__.py"
    source.write_text("import sys\nsys.wait_for_it()\nraise RuntimeError('not yet')\n")
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(package)
    source.write_text("value = 7  # whole now, and of another length\n")
    importlib.import_module(package)
    assert seen == [7]


@pytest.fixture
def run_made(run_python, tmp_path):
    def run(code):
        done = run_python(PACKAGES.format(place=str(tmp_path)) + code, is_real=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def test_names_are_imported_at_their_first_use(run_made):
    code = """
import npu_made
print("npu_made.value" in sys.modules, npu_made.VALUE, "VALUE" in vars(npu_made))
print(npu_made.inner.__name__, hasattr(npu_made, "other"))
"""
    assert run_made(code) == ["npu_made", "False", "1", "True", "inner", "npu_made.inner", "False"]


def test_a_deferred_start_waits_for_its_call(run_made):
    code = """
with deferred_starts():
    import npu_made.inner.leaf
    print(is_deferred())
    start_packages()
    start_packages()
    print(is_deferred())
"""
    assert run_made(code) == ["leaf", "True", "npu_made", "inner", "False"]


def test_without_that_call_the_packages_are_forgotten_and_start_at_the_next_import(run_made):
    code = """
with deferred_starts():
    import npu_made.inner.leaf
    import npu_runtime.errors
print([name for name in sys.modules if name.startswith(("npu_made", "npu_runtime"))])
import npu_made.inner
"""
    assert run_made(code) == ["leaf", "[]", "npu_made", "inner"]


def test_a_package_that_is_not_imported_does_not_start_with_the_others(run_made):
    code = """
with deferred_starts():
    import npu_made.inner.leaf
    start_packages()
print("npu_runtime" in sys.modules, "torch" in sys.modules)
"""
    assert run_made(code)[-2:] == ["False", "False"]


@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize("parts", ["npu_ops.config, npu_runtime.errors", "npu_runtime.errors"])
def test_the_device_and_its_kernels_start_whole_after_a_part_was_imported(
    run_made, monkeypatch, parts, autoload
):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", autoload)
    code = f"""
with deferred_starts():
    import {parts}
    print("torch" in sys.modules)
    start_packages()
import torch, npu_runtime, npu_ops
print(float(torch.ones(2, device="npu").sum()), npu_ops.debugging.Report.__name__)
"""
    assert run_made(code)[-3:] == ["False", "2.0", "Report"]


def test_starts_are_not_deferred_once_the_device_is_there(run_made):
    code = """
import npu_runtime
with deferred_starts():
    import npu_made.inner.leaf
    print(is_deferred())
"""
    assert run_made(code) == ["npu_made", "inner", "leaf", "False"]
