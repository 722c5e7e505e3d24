"""Actions at a first import, and packages whose modules are imported before their own code runs."""

import contextlib
import importlib
import importlib.resources
import importlib.util
import sys

import pytest

from npu_command.import_hooks import when_imported, while_importing

# A package whose code says that it ran, one in it, and a module that names both.
PACKAGES = """
import sys
from pathlib import Path
top = Path({place!r})
made = top / "npu_made"
(made / "inner").mkdir(parents=True)
(made / "__init__.py").write_text("print('npu_made'); VALUE = 1")
(made / "inner" / "__init__.py").write_text("print('inner'); from npu_made import VALUE")
(made / "inner" / "leaf.py").write_text("print('leaf'); import npu_made")
sys.path.insert(0, str(top))
from npu_command.import_hooks import bare_packages, is_bare, load_packages
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


def test_a_module_is_imported_without_the_code_of_the_packages_around_it(run_made):
    code = """
with bare_packages("npu_made.inner.leaf"):
    import npu_made.inner.leaf
    print(is_bare("npu_made"), is_bare("npu_made.inner"), hasattr(npu_made, "VALUE"))
"""
    assert run_made(code) == ["leaf", "True", "True", "False"]


def test_their_code_runs_later_in_the_same_modules_outermost_first(run_made):
    code = """
with bare_packages("npu_made.inner.leaf"):
    import npu_made.inner.leaf as leaf
    load_packages()
    load_packages()
    print(is_bare("npu_made"), leaf.npu_made.VALUE, sys.modules["npu_made.inner"].VALUE)
import npu_made
print(leaf is npu_made.inner.leaf, npu_made.__spec__.loader is npu_made.__loader__)
print("npu_command.import_hooks" in str(type(npu_made.__loader__)))
"""
    said = run_made(code)
    assert said == ["leaf", "npu_made", "inner", "False", "1", "1", "True", "True", "False"]


def test_without_that_they_are_forgotten_and_import_as_ever_afterwards(run_made):
    code = """
with bare_packages("npu_made.inner.leaf"):
    import npu_made.inner.leaf
    import npu_runtime.errors
print([name for name in sys.modules if name.startswith(("npu_made", "npu_runtime"))])
import npu_made.inner
print(is_bare("npu_made"), npu_made.VALUE)
"""
    assert run_made(code) == ["leaf", "[]", "npu_made", "inner", "False", "1"]


def test_a_package_that_nobody_imported_is_not_loaded_with_the_others(run_made):
    code = """
with bare_packages("npu_made.inner.leaf"):
    import npu_made.inner.leaf
    load_packages()
print("npu_runtime" in sys.modules, "torch" in sys.modules)
"""
    assert run_made(code)[-2:] == ["False", "False"]


def test_the_device_and_its_kernels_are_whole_after_a_part_of_them_was_there(run_made):
    code = """
with bare_packages("npu_ops.debugging.commands.replay"):
    import npu_ops.config, npu_ops.debugging.commands.replay, npu_runtime.errors
    print("torch" in sys.modules)
    load_packages()
import torch, npu_runtime, npu_ops
print(float(torch.ones(2, device="npu").sum()), npu_ops.debugging.Report.__name__)
"""
    assert run_made(code)[-3:] == ["False", "2.0", "Report"]


def test_packages_that_are_loaded_are_left_as_they_are(run_made):
    code = """
import npu_made.inner
with bare_packages("npu_made.inner.leaf"):
    import npu_made.inner.leaf
    print(is_bare("npu_made"))
print(npu_made.VALUE)
"""
    assert run_made(code) == ["npu_made", "inner", "leaf", "False", "1"]
