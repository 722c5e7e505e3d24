import importlib
import importlib.resources
import sys

import pytest

from npu_profiler.listeners.import_hook import ImportHook


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "hooked_package").mkdir()
    (tmp_path / "hooked_package" / "__init__.py").write_text("value = 7\n")
    (tmp_path / "hooked_package" / "data.txt").write_text("here")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooked_package"
    sys.modules.pop("hooked_package", None)


def test_hook_calls_after_the_module_is_complete(package):
    seen = []
    hook = ImportHook({package: lambda: seen.append(sys.modules[package].value)})
    hook.install()
    importlib.import_module(package)
    hook.remove()
    assert seen == [7]


def test_hook_calls_at_once_for_an_imported_module(package):
    importlib.import_module(package)
    seen = []
    hook = ImportHook({package: lambda: seen.append(1)})
    hook.install()
    hook.remove()
    assert seen == [1]


def test_hook_leaves_the_module_its_own_loader(package):
    hook = ImportHook({package: lambda: None})
    hook.install()
    module = importlib.import_module(package)
    hook.remove()
    assert type(module.__loader__).__module__ != "npu_profiler.listeners.import_hook"
    assert (importlib.resources.files(package) / "data.txt").read_text() == "here"


def test_removed_hook_calls_nothing(package):
    seen = []
    hook = ImportHook({package: lambda: seen.append(1)})
    hook.install()
    hook.remove()
    importlib.import_module(package)
    assert seen == []
    assert hook not in sys.meta_path


def test_hook_does_not_hide_that_a_module_is_missing():
    hook = ImportHook({"no_such_module_anywhere": lambda: None})
    hook.install()
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_anywhere")
    finally:
        hook.remove()
