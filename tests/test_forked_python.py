"""The test suites' forked processes (tools/forked_python.py) against real ones."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import forked_python

PYTHON = sys.executable


def run(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return forked_python.run([PYTHON, "-c", code, *arguments], **options)


HANDLED_ERRORS = """
import atexit, sys, threading
class Freed:
    def __del__(self): print("freed")
freed = Freed()
atexit.register(print, "last")
threading.Timer(0.05, print, ["late"]).start()
print("error", file=sys.stderr)
print("first")
"""

SURROUNDINGS = """
import os, sys
print(sys.argv, __name__, sys.path[0], __spec__, input())
print(os.environ["GIVEN"], "HOME" in os.environ, os.getcwd())
print([(f.encoding, f.errors, f.isatty()) for f in (sys.stdin, sys.stdout, sys.stderr)])
def f(x: int): pass
print(f.__annotations__)
"""


@pytest.fixture
def is_forked(monkeypatch):
    """Whether a command is forked; it is not run."""

    def is_forked(*command: str, **options: object) -> bool:
        class Started(Exception):
            pass

        def start(*_: object, **__: object) -> None:
            raise Started

        forks = []
        monkeypatch.setattr(forked_python.subprocess, "run", start)
        monkeypatch.setattr(forked_python, "_Forked", lambda *_, **__: forks.append(1) or start())
        with pytest.raises(Started):
            forked_python.run(command, **options)
        return bool(forks)

    return is_forked


def test_a_child_is_forked_with_torch_and_the_device_before_its_code():
    done = run(
        "import os, sys; print(os.getppid(), 'torch' in sys.modules, 'npu_runtime' in sys.modules)"
    )
    parent, *loaded = done.stdout.split()
    assert int(parent) != os.getpid()
    assert loaded == ["True", "True"]


def test_backends_are_left_out_where_the_environment_says_so():
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = run("import sys; print('npu_runtime' in sys.modules)", env=environment)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit('said')",
        "def f(): 1 / 0\nf()",
        "syntax error",
        "import os; os.abort()",
        "import os; os._exit(7)",
        "import ctypes; ctypes.CDLL(None).printf(b'of C'); raise SystemExit(3)",
        HANDLED_ERRORS,
        SURROUNDINGS,
    ],
)
def test_a_child_ends_and_prints_as_a_real_process_does(code, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "HOME"} | {"GIVEN": "value"}
    options = {"env": environment, "cwd": tmp_path, "input": "typed\n"}
    command = [PYTHON, "-c", code, "one", "two"]
    real = subprocess.run(
        command, **options, check=False, capture_output=True, text=True, timeout=60
    )
    forked = forked_python.run(command, **options, timeout=300)
    assert forked.stdout == real.stdout
    assert forked.stderr == real.stderr
    assert forked.returncode == real.returncode


def test_scripts_and_modules_see_what_python_shows_them(tmp_path):
    text = "import sys; print(__name__, __file__, sys.argv, sys.path[0], __package__, neighbour)"
    (tmp_path / "neighbour.py").touch()
    (tmp_path / "one.py").write_text("import neighbour\n" + text)
    for arguments in (["one.py", "a"], [tmp_path / "one.py"], ["-m", "one", "a"], ["-m", "none"]):
        command = [PYTHON, *map(str, arguments)]
        real = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
        forked = forked_python.run(command, cwd=tmp_path)
        assert (forked.stdout, forked.stderr, forked.returncode) == (
            real.stdout,
            real.stderr,
            real.returncode,
        )


def test_children_of_one_server_do_not_share_random_numbers():
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    first, second = (run(code).stdout.split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_child_may_spawn_processes(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing

            def work(x):
                print(x, flush=True)

            if __name__ == "__main__":
                process = multiprocessing.get_context("spawn").Process(target=work, args=(5,))
                process.start()
                process.join()
        """)
    )
    done = forked_python.run([PYTHON, "spawns.py"], cwd=tmp_path, timeout=300)
    assert (done.stdout, done.stderr) == ("5\n", "")


def test_a_child_that_outlasts_its_time_is_killed(monkeypatch):
    started = []

    def start(*arguments: object, **options: object) -> object:
        started.append(Forked(*arguments, **options))
        return started[-1]

    Forked = forked_python._Forked
    monkeypatch.setattr(forked_python, "_Forked", start)
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run("import time; time.sleep(300)", timeout=0.5)
    assert (caught.value.stdout, caught.value.stderr) == ("", "")
    assert started[0].returncode == -signal.SIGKILL


def test_a_failure_is_raised_on_request():
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run("import sys; print('why', file=sys.stderr); sys.exit(4)", check=True)
    assert (caught.value.returncode, caught.value.stderr) == (4, "why\n")


def test_standard_input_may_be_a_file(tmp_path):
    (tmp_path / "file").write_text("from a file")
    with (tmp_path / "file").open() as file:
        assert run("print(input())", stdin=file.fileno()).stdout == "from a file\n"
    assert run("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_modules_are_loaded_before_on_request():
    done = run("import sys; print('colorsys' in sys.modules)", preload=["colorsys"])
    assert done.stdout == "True\n"
    assert run("import sys; print('colorsys' in sys.modules)").stdout == "False\n"


def test_other_programs_and_other_starts_are_real_processes(is_forked, tmp_path, monkeypatch):
    assert is_forked(PYTHON, "-c", "1")
    assert is_forked(PYTHON, "-u", "-c", "1")
    assert not is_forked("/bin/true")
    assert not is_forked(PYTHON)
    assert not is_forked(PYTHON, "-X", "importtime", "-c", "1")
    assert not is_forked(PYTHON, "-u", "-O", "-c", "1")
    assert not is_forked(PYTHON, str(tmp_path))
    assert not is_forked(PYTHON, str(tmp_path / "absent.py"))
    for name in ("PYTHONHASHSEED", "OMP_NUM_THREADS", "LC_ALL", "TORCH_DISTRIBUTED_DEBUG"):
        assert not is_forked(PYTHON, "-c", "1", env=os.environ | {name: "changed"})
    offline = os.environ | {"HF_HUB_OFFLINE": "changed"}
    assert is_forked(PYTHON, "-c", "1", env=offline)
    assert not is_forked(PYTHON, "-c", "1", env=offline, preload=["colorsys"])
    more = os.environ | {"PYTHONPATH": str(tmp_path)}
    (tmp_path / "made_for_this.py").touch()
    assert is_forked(PYTHON, "-c", "1", env=more)
    (tmp_path / "json.py").touch()  # another one is found today
    assert not is_forked(PYTHON, "-c", "1", env=more)
    monkeypatch.setenv("OMP_NUM_THREADS", "changed")  # the server has the value of its start
    assert not is_forked(PYTHON, "-c", "1")


def test_a_started_process_reads_writes_and_waits():
    code = "for line in iter(input, 'end'): print(line * 2, flush=True)"
    pipe = subprocess.PIPE
    with forked_python.start([PYTHON, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stderr is None
        process.stdin.write("ab\n")
        process.stdin.flush()
        assert process.stdout.readline() == "abab\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        assert process.communicate("c\nend\n", timeout=300) == ("cc\n", None)
    assert process.returncode == process.wait() == process.poll() == 0


def test_processes_run_at_the_same_time():
    code = "import os; print(len(os.listdir('/proc/self/fd')), flush=True); input()"
    pipe = subprocess.PIPE
    alone = int(run("import os; print(len(os.listdir('/proc/self/fd')))").stdout)
    processes = [forked_python.start([PYTHON, "-c", code], stdin=pipe, stdout=pipe) for _ in "abc"]
    assert [process.stdout.readline() for process in processes] == [f"{alone}\n"] * 3
    assert [process.communicate("\n", timeout=300)[0] for process in processes] == [""] * 3
    assert [process.returncode for process in processes] == [0] * 3


def test_output_is_whole_after_a_timeout(tmp_path):
    code = "import time; print('before', flush=True); open('ready', 'w'); time.sleep(300)"
    process = forked_python.start(
        [PYTHON, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.1)
    process.kill()
    assert process.communicate(timeout=300) == ("before\n", None)
    assert process.returncode == -signal.SIGKILL


def test_a_started_process_takes_signals_and_may_lead_a_group(tmp_path):
    code = "import os, time; print(os.getpgid(0), flush=True); time.sleep(60)"
    for end in (forked_python._Forked.terminate, lambda process: os.killpg(process.pid, 15)):
        process = forked_python.start(
            [PYTHON, "-c", code], stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout.readline() == f"{process.pid}\n"
        end(process)
        assert process.wait(300) == -signal.SIGTERM
        process.terminate()  # it has ended
        process.communicate()


def test_an_interrupt_ends_a_process_as_it_ends_python():
    code = "import time; print('ready', flush=True); time.sleep(60)"
    pipe = subprocess.PIPE
    process = forked_python.start([PYTHON, "-c", code], stdout=pipe, stderr=pipe)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert err.endswith("KeyboardInterrupt\n")
    assert process.returncode == -signal.SIGINT
