"""Wrong values of every variable in docs/reference/environment.md: one sentence that names it."""

import re
import sys

import pytest

# An invalid value of each variable, and the code of its error. `{file}` is a file and
# `{folder}` a folder. Without a code any text is a value: of the lists all are patterns.
WRONG = {
    "NPU_ATTACH": ("banana", "bad-setting"),
    "NPU_AUTO": ("banana", "bad-setting"),
    "NPU_COMPILE_CACHE_DIR": ("{file}", "bad-setting"),
    "NPU_COMPILE_CACHE_SIZE_MB": ("-1", "bad-setting"),
    "NPU_COMPILE_DEBUG": ("{file}/below", "bad-setting"),
    "NPU_COMPILE_TARGET": ("tpu", "bad-setting"),
    "NPU_COMPILE_TMPDIR": ("/nowhere/at/all", "bad-setting"),
    "NPU_DEVICE": ("banana", "device-absent"),
    "NPU_DRIVER": ("banana", "device-absent"),
    "NPU_FALLBACK_OPS": ("[,*?", None),
    "NPU_HUGGINGFACE": ("banana", "bad-setting"),
    "NPU_LAUNCH_BLOCKING": ("banana", "bad-setting"),
    "NPU_LLM_CACHE_DIR": ("{file}", "bad-setting"),
    "NPU_MEMORY_CHECK": ("2", "bad-setting"),
    "NPU_OOM_SNAPSHOT": ("{folder}", "bad-setting"),
    "NPU_OPENVINO_LIBRARY": ("{folder}", "bad-setting"),
    "NPU_OPS_MEMORY_DIR": ("{file}", "bad-setting"),
    "NPU_OPS_PROGRAMS": ("0", "bad-setting"),
    "NPU_OPS_RECORDS": ("{folder}", "bad-setting"),
    "NPU_OPS_TUNE": ("banana", "bad-setting"),
    "NPU_OPS_VARIANT": ("banana", "bad-setting"),
    "NPU_PROFILE_LAYERS": ("banana", "bad-setting"),
    "NPU_SANITIZER": ("banana", "bad-setting"),
    "NPU_STRICT": ("banana", "bad-setting"),
    "NPU_TARGET_COMPILER": ("/nowhere", None),  # read where a compiler is started
    "OP_<TOOL>_DISABLE_LIST": ("[,*?", None),
    "OP_<TOOL>_LIST": ("[,*?", None),
    "KINETO_LOG_LEVEL": ("banana", None),
}
OF_COMPILER = {name for name in WRONG if name.startswith("NPU_COMPILE_")}
OF_LLM = {"NPU_LLM_CACHE_DIR"}
OF_DEVICE = {name for name, (_, code) in WRONG.items() if code} - OF_COMPILER - OF_LLM

PROGRAM = """
import torch, warnings

def attempt(what):
    try:
        what()
    except Exception as error:
        print(type(error).__module__.split(".")[0], type(error).__name__, error)
    else:
        print("fine")

print(torch.ones(2).sum().item())
attempt(lambda: torch.ones(2, device="npu"))
attempt(lambda: torch.compile(torch.nn.ReLU(), backend="npu")(torch.ones(2)))
"""


@pytest.fixture
def wrong(tmp_path):
    """The environment with a variable's wrong value."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()

    def environment(name):
        value = WRONG[name][0].format(file=tmp_path / "file", folder=tmp_path / "folder")
        return {name.replace("<TOOL>", "OBSERVE"): value}

    return environment


def assert_sentence(text, name):
    """One sentence that names the variable and ends with its code."""
    assert name in text
    assert text.strip().endswith(f"[{WRONG[name][1]}]")
    assert "Traceback" not in text


def test_no_variable_is_left_out(root):
    page = (root / "docs" / "reference" / "environment.md").read_text()
    ours = page.split("Variables of other projects")[0]
    assert set(re.findall(r"^\| `([A-Z<>_]+)` \|", ours, re.M)) == set(WRONG)


@pytest.mark.parametrize("name", sorted(OF_DEVICE))
def test_torch_imports_and_the_device_says_what_is_wrong(run, wrong, name):
    done = run(sys.executable, "-c", PROGRAM, **wrong(name))
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "2.0"
    assert len(printed) == 3, done.stdout
    for line in printed[1:]:
        assert_sentence(line, name)
    assert "BackendCompilerFailed" not in done.stdout
    if WRONG[name][1] == "bad-setting":
        assert "RuntimeWarning: npu: the device will not serve: " + name in done.stderr


@pytest.mark.parametrize("name", sorted(OF_COMPILER))
def test_compiling_says_what_is_wrong(run, wrong, name):
    done = run(sys.executable, "-c", PROGRAM, **wrong(name))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["2.0", "fine"]
    (line,) = done.stdout.splitlines()[2:]
    assert line.startswith("npu_compiler OptionError ")
    assert_sentence(line, name)


@pytest.mark.parametrize("name", sorted(name for name in WRONG if WRONG[name][1] is None))
def test_any_text_is_a_list_of_patterns_or_a_level(run, wrong, name):
    done = run(sys.executable, "-c", PROGRAM, **wrong(name))
    assert done.stdout.splitlines() == ["2.0", "fine", "fine"], done.stderr


COMMANDS = {
    "npu-runtime": ("npu-runtime", "info"),
    "npu-ops": ("npu-ops", "run", "script.py"),
    "npu-compiler": ("npu-compiler", "explain", "script.py"),
    "npu-llm": ("npu-llm", "generate", "Hello"),
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_each_command_says_what_is_wrong(run, wrong, tmp_path, command):
    (tmp_path / "script.py").write_text("import torch\nprint(torch.ones(2, device='npu'))\n")
    done = run(*COMMANDS[command], **wrong("NPU_STRICT"))
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert_sentence(done.stderr.splitlines()[-1], "NPU_STRICT")
    assert "Traceback" not in done.stderr


def test_a_traced_program_has_the_error_for_its_own(run, wrong, tmp_path):
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "try:\n    torch.ones(2, device='npu')\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    done = run("npu-profiler", "trace", "-o", "trace.json", "script.py", **wrong("NPU_STRICT"))
    assert done.returncode == 0, done.stderr
    assert_sentence(done.stdout, "NPU_STRICT")
    assert (tmp_path / "trace.json").exists()


@pytest.mark.parametrize("name", sorted(OF_DEVICE - {"NPU_STRICT"}))
def test_a_command_says_what_is_wrong_with_any_of_the_device(run, wrong, name):
    done = run("npu-runtime", "info", **wrong(name))
    assert done.returncode == 2, done.stderr
    assert_sentence(done.stderr, name)


@pytest.mark.parametrize("name", sorted(OF_COMPILER))
def test_a_compiling_command_says_what_is_wrong(run, wrong, tmp_path, name):
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.compile(torch.nn.ReLU(), backend='npu')(torch.ones(2))\n"
    )
    done = run("npu-compiler", "explain", "script.py", **wrong(name))
    assert done.returncode == 2, done.stderr
    assert_sentence(done.stderr, name)


def test_the_cache_of_language_models_is_a_folder(run, wrong):
    done = run("npu-llm", "generate", "Hello", **wrong("NPU_LLM_CACHE_DIR"))
    assert done.returncode == 2, done.stderr
    assert_sentence(done.stderr, "NPU_LLM_CACHE_DIR")


def test_the_doctor_says_what_is_wrong(run, wrong):
    done = run("npu-runtime", "doctor", **wrong("NPU_STRICT"))
    assert "Traceback" not in done.stderr
    assert "NPU_STRICT" in done.stdout + done.stderr


def test_a_variable_that_is_set_later_is_named_at_its_first_use(run):
    done = run(
        sys.executable,
        "-c",
        "import os, torch\nos.environ['NPU_STRICT'] = 'banana'\n"
        "try:\n    torch.ones(2, device='npu').cumsum(0)\n"
        "except RuntimeError as error:\n    print(error)\n",
    )
    (line,) = done.stdout.splitlines()
    assert_sentence(line, "NPU_STRICT")
