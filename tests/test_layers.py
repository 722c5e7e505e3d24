"""Refusals of `nox -s layers`, in copies of this tree with one import too many."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")
LINT = (
    "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"
)


@pytest.fixture
def tree(root, tmp_path):
    """The Python sources and the contracts."""
    for package in PACKAGES:
        source = Path("packages") / package / "src"
        shutil.copytree(root / source, tmp_path / source, ignore=not_python)
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def not_python(folder, names):
    return [
        name
        for name in names
        if name == "__pycache__" or (not name.endswith(".py") and Path(folder, name).is_file())
    ]


def run(tree, *command):
    paths = [str(tree / "packages" / package / "src") for package in PACKAGES]
    paths.append(sysconfig.get_path("purelib"))
    return subprocess.run(
        [sys.executable, "-S", *map(str, command)],  # past the hooks of editable installations
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def circles(root, tree):
    settings = tomllib.loads((tree / "pyproject.toml").read_text())
    roots = settings["tool"]["importlinter"]["root_packages"]
    return run(tree, root / "tools" / "import_circles.py", *roots)


def add(tree, file, line):
    (path,) = tree.glob(f"packages/*/src/{file}")
    path.write_text(f"{path.read_text()}\n{line}\n")


def test_the_tree_as_it_is_has_no_circle_and_keeps_all_contracts(root, tree):
    done = run(tree, "-c", LINT)
    assert done.returncode == 0, done.stdout
    done = circles(root, tree)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "file, line",
    [
        ("npu_runtime/errors.py", "import npu_ops"),
        ("npu_command/caches.py", "import npu_runtime.observe"),
        ("npu_runtime/torch_integration/flex_attention.py", "from npu_runtime.npu import device"),
        ("npu_ops/fused/library.py", "def late():\n    import npu_ops.fused.rms_norm"),
        ("npu_ops/debugging/report.py", "from npu_ops.op_conformance import cell"),
        ("npu_llm/errors.py", "import npu_profiler"),
    ],
    ids=lambda value: value.partition("\n")[0],
)
def test_an_import_that_goes_up_or_round_is_refused(tree, file, line):
    add(tree, file, line)
    done = run(tree, "-c", LINT)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout


def test_a_module_in_no_room_is_refused(tree):
    (tree / "packages/npu-ops/src/npu_ops/helpers.py").write_text("")
    done = run(tree, "-c", LINT)
    assert done.returncode == 1
    assert "helpers" in done.stdout


@pytest.mark.parametrize(
    "file, line",
    [
        ("npu_runtime/observe.py", "from npu_runtime import load_program"),
        ("npu_runtime/observe.py", "from npu_runtime import _C, load_program"),
        ("npu_ops/fused/swiglu.py", "def late():\n    from npu_ops.fused import rms_norm_"),
    ],
    ids=lambda value: value.partition("\n")[0],
)
def test_a_circle_through_the_package_itself_is_told(root, tree, file, line):
    add(tree, file, line)
    done = circles(root, tree)
    assert done.returncode == 1
    assert done.stderr.startswith("A circle of imports: ")
    assert file.removesuffix(".py").replace("/", ".") in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "if TYPE_CHECKING:\n    from npu_runtime.program import Program",
        "def late():\n    importlib.import_module('npu_runtime.program')",
    ],
    ids=["for types", "by name"],
)
def test_a_circle_that_no_import_statement_closes_at_run_time_is_told(root, tree, line):
    add(tree, "npu_runtime/observe.py", line)
    done = circles(root, tree)
    assert done.returncode == 1
    assert "npu_runtime.observe -> npu_runtime.program" in done.stderr
