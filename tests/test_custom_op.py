"""examples/custom_op and the output of `npu-ops new`: both built, installed apart, tested
unchanged. They are installed into a separate directory, so that other tests do not get their
converters.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from npu_ops.scaffold import write_project

EXAMPLE = "examples/custom_op"
GUIDE = "docs/guides/adding-an-op.md"
SECOND_OP = {"csrc/write_ring.cpp", "src/NAME/python_alone.py", "tests/test_write_ring.py"}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Path:
    """The project that `npu-ops new my_op` writes."""
    return write_project("my_op", tmp_path_factory.mktemp("new") / "my_op")[0]


@pytest.fixture(scope="module")
def installed(root, fresh, pip, tmp_path_factory) -> dict[str, str]:
    """The environment variables with which Python finds both wheels."""
    place = str(tmp_path_factory.mktemp("site"))
    flags = ("--no-deps", "--no-build-isolation", "--check-build-dependencies", "--quiet")
    pip("install", *flags, "--target", place, str(root / EXAMPLE), str(fresh))
    return {"PYTHONPATH": place}


def run_tests(run_new, project: Path, **environment: str) -> None:
    done = run_new(
        "python", "-m", "pytest", str(project), "-q", "-p", "no:cacheprovider", **environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed in", done.stdout, flags=re.MULTILINE), done.stdout


def test_a_new_op_passes_its_tests_unchanged(run_new, fresh, installed):
    run_tests(run_new, fresh, **installed)


@pytest.mark.long
@pytest.mark.parametrize("driver", ["openvino", "sim"])
def test_the_example_passes_its_tests(run_new, root, installed, driver):
    run_tests(run_new, root / EXAMPLE, NPU_DRIVER=driver, **installed)


def test_the_benchmark_runs(run, root, installed):
    script = root / EXAMPLE / "benchmarks" / "time_add_custom.py"
    done = run("python", str(script), "--repeats", "1", "--elements", "8", "4096", **installed)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.long
def test_a_new_op_can_be_installed_editable(fresh, tmp_path, run):
    """The library then lies in another folder than the Python files."""
    environment = tmp_path / "environment"
    folders = [path for path in sys.path if path.endswith("site-packages")]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    (packages / "tests_environment.pth").write_text("\n".join(lines) + "\n")
    python = str(environment / "bin" / "python")
    flags = ("--no-deps", "--no-build-isolation", "--quiet")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for arguments in (
        ("-m", "pip", "install", *flags, "--editable", str(fresh)),
        ("-c", "import torch, my_op; print(my_op.my_op(torch.ones(2, device='npu'), 3.0).sum())"),
    ):
        done = run(python, *arguments, PATH=path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "6." in done.stdout


def files_of(project: Path, name: str) -> dict[str, str]:
    """Each file's text by its path, without the op's name and the guide's marked parts."""
    found = {}
    for file in project.rglob("*"):
        if not file.is_file() or {"__pycache__", ".pytest_cache"} & set(file.parts):
            continue
        text = re.sub(r"^[#/ ]*--8<-- .*\n", "", file.read_text(), flags=re.MULTILINE)
        path = str(file.relative_to(project)).replace(name, "NAME")
        found[path] = text.replace(name, "NAME").replace(name.replace("_", "-"), "NAME-WHEEL")
    return found


def test_the_example_is_what_npu_ops_new_writes_filled_in(root, tmp_path):
    example = files_of(root / EXAMPLE, "add_custom")
    written = files_of(write_project("add_custom", tmp_path / "new")[0], "add_custom")
    assert set(example) - set(written) == SECOND_OP
    assert not set(written) - set(example)
    same = {path for path, text in example.items() if written.get(path) == text}
    assert same == {"pyproject.toml", "src/NAME/py.typed"}


def test_the_guide_quotes_every_mark_of_the_example(root):
    quoted = set(re.findall(rf'--8<-- "{EXAMPLE}/(\S+:\w+)"', (root / GUIDE).read_text()))
    marked = {
        f"{file.relative_to(root / EXAMPLE)}:{mark}"
        for file in (root / EXAMPLE).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
        for mark in re.findall(r"--8<-- \[start:(\w+)\]", file.read_text())
    }
    assert quoted == marked


def test_the_guides_commands_run_in_their_order(run, root, tmp_path):
    """All `bash` blocks of the page; the other tests run the blocks with pip."""
    text = (root / GUIDE).read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert commands[0] == "npu-ops new add_custom"
    assert run("python", "-m", "npu_ops.cli", *commands[0].split()[1:]).returncode == 0
    for command in commands[1:]:
        places = re.findall(r"\./add_custom\S*", command)
        assert places, command
        assert all((tmp_path / place).exists() for place in places), command


def test_the_guides_python_prints_what_it_says(run, root, installed):
    found = re.findall(
        r"^```python\n((?:(?!```).*\n)+)```\n+It prints `(.*?)`",
        (root / GUIDE).read_text(),
        flags=re.MULTILINE,
    )
    assert found
    for snippet, printed in found:
        done = run("python", "-c", snippet, **installed)
        assert done.stdout.strip() == printed, done.stderr
