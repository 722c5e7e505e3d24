"""Packages whose modules are there before their own code has run."""

import pytest

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
from npu_command.help.bare_packages import bare_packages, is_bare, load_packages
"""


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
print("npu_command.help.bare_packages" in str(type(npu_made.__loader__)))
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
with bare_packages("npu_ops.tools.commands.replay"):
    import npu_ops.config, npu_ops.tools.commands.replay, npu_runtime.errors
    print("torch" in sys.modules)
    load_packages()
import torch, npu_runtime, npu_ops
print(float(torch.ones(2, device="npu").sum()), npu_ops.tools.Report.__name__)
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
