import os
import subprocess
import sys

import pytest

from npu_command.errors import InputError
from npu_command.running import ModuleProgram, ScriptProgram

SHOW = """
import sys, os
import __main__
print(sys.argv, __name__, __file__, __spec__ is None, sys.path[0], __main__.__dict__ is globals())
"""

RUN_SCRIPT = "from npu_command.running import ScriptProgram as P; P.find('%s', %r).run()"
RUN_MODULE = "from npu_command.running import ModuleProgram as P; P.find('%s', %r).run()"


@pytest.fixture
def run_python(tmp_path):
    """Runs `python` with arguments in a separate directory."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            timeout=300,
            check=False,
        )

    return run


def compare(run_python, ours, theirs):
    """Both runs must look the same from outside."""
    found, expected = run_python(*ours), run_python(*theirs)
    assert found.returncode == expected.returncode
    assert found.stdout == expected.stdout
    assert found.stderr == expected.stderr
    return expected


def test_script_sees_what_python_shows_it(run_python, tmp_path):
    (tmp_path / "s.py").write_text(SHOW)
    compare(run_python, ["-c", RUN_SCRIPT % ("s.py", ["a", "-b"])], ["s.py", "a", "-b"])


def test_module_sees_what_python_shows_it(run_python, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(SHOW + "print(__package__)\n")
    compare(run_python, ["-c", RUN_MODULE % ("package", ["a"])], ["-m", "package", "a"])


def test_directory_with_a_main_runs(run_python, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("import sys; print(sys.argv)")
    compare(run_python, ["-c", RUN_SCRIPT % ("folder", ["a"])], ["folder", "a"])


@pytest.mark.parametrize(
    "body",
    [
        "def f():\n    raise ValueError('deep')\nf()\n",
        "x = (\n",
        "import sys; sys.exit(7)\n",
        "raise SystemExit('a message')\n",
        "import sys; sys.excepthook = lambda *a: print('hook', a[0]); 1 / 0\n",
        "raise KeyboardInterrupt\n",
        "import threading as t; t.Timer(0.3, print, ['late']).start(); 1 / 0\n",
    ],
    ids=["error", "syntax", "exit", "exit-message", "own-hook", "ctrl-c", "thread-outlives"],
)
def test_end_of_a_script_is_as_under_python(run_python, tmp_path, body):
    (tmp_path / "s.py").write_text(body)
    compare(run_python, ["-c", RUN_SCRIPT % ("s.py", [])], ["s.py"])


def test_processes_can_be_spawned(run_python, tmp_path):
    (tmp_path / "s.py").write_text(
        "import multiprocessing\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n"
    )
    expected = compare(run_python, ["-c", RUN_SCRIPT % ("s.py", [])], ["s.py"])
    assert expected.stdout == "[2, 4]\n"


def test_a_module_whose_name_is_no_identifier_is_found(monkeypatch, tmp_path):
    (tmp_path / "two-words.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path[1:]])
    assert ModuleProgram.find("two-words", []).spec.origin == str(tmp_path / "two-words.py")


def test_missing_script_is_an_error_with_its_path(tmp_path):
    with pytest.raises(InputError, match=r"none\.py") as caught:
        ScriptProgram.find(str(tmp_path / "none.py"), [])
    assert caught.value.code == "script-missing"


MISSING = ["no_such_module", "json.none", "no_such.part", "not a name", "a..b", "", "__main__"]


@pytest.mark.parametrize("name", MISSING)
def test_missing_module_is_an_error_with_its_name(monkeypatch, name):
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path[1:]])
    with pytest.raises(InputError) as caught:
        ModuleProgram.find(name, [])
    assert caught.value.code == "module-missing"
    assert name in str(caught.value)
