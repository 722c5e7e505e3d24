"""Programs run by `python -m npu_llm.compat`, each in a separate process."""

import os
import sys

import pytest

import forked_python

# The programs of that library's README, and other checks of its names.
README = """
import warnings
import numpy as np
import torch
import intel_npu_acceleration_library
from intel_npu_acceleration_library.backend import MatMul
from intel_npu_acceleration_library.nn.module import NPUModuleWrapper

inC, outC, batch = 48, 32, 16
X1 = np.random.uniform(-1, 1, (batch, inC)).astype(np.float16)
X2 = np.random.uniform(-1, 1, (outC, inC)).astype(np.float16)
mm = MatMul(inC, outC, batch, profile=False)
result = mm.run(X1, X2)
assert np.allclose(result, X1.astype(np.float32) @ X2.T.astype(np.float32), atol=0.03)

model = torch.nn.Sequential(torch.nn.Linear(inC, outC), torch.nn.ReLU())
x = torch.randn(batch, inC)
expected = model(x)
optimized_model = torch.compile(model, backend="npu")
with torch.no_grad():  # float16 inputs, as in the example that compiles a model
    for given in (x, x.half()):
        assert torch.allclose(optimized_model(given).float(), expected, atol=0.01)

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    kept = x.half().to("npu")
    assert kept.to("npu", torch.float32).device == torch.device("cpu")
told = [str(one.message) for one in told]
assert len(told) == 1 and "stay on the host" in told[0], told
moved = torch.nn.Linear(inC, outC).half().to("npu")
assert isinstance(moved, NPUModuleWrapper) and moved(kept).shape == (batch, outC)
assert torch.zeros(2).to(torch.float16).dtype == torch.float16

optimized_model = intel_npu_acceleration_library.compile(model, dtype=torch.int8)
assert torch.allclose(optimized_model(x), expected, atol=0.03)
assert type(optimized_model[0]) is intel_npu_acceleration_library.nn.QuantizedLinear

import intel_npu_acceleration_library.external.openvino as ov
assert ov.get_version()
for name in ("backend.bindings", "nothing"):
    try:
        __import__("intel_npu_acceleration_library." + name)
    except ImportError as error:
        print(error)
print("done")
"""


@pytest.fixture
def run(tmp_path):
    """Runs `python -m npu_llm.compat` with words, in a separate folder."""

    def run(*words):
        line = [sys.executable, "-m", "npu_llm.compat", *words]
        variables = {**os.environ, "NPU_LLM_CACHE_DIR": str(tmp_path)}
        return forked_python.run(line, cwd=tmp_path, timeout=300, env=variables)

    return run


def test_programs_of_the_readme_run(run, tmp_path):
    (tmp_path / "readme.py").write_text(README)
    done = run("readme.py")
    assert done.returncode == 0, done.stderr
    bindings, nothing, end = done.stdout.splitlines()
    assert "[compat-absent]" in bindings
    assert nothing == "No module named 'intel_npu_acceleration_library.nothing'"
    assert end == "done"


def test_a_program_has_its_own_arguments_name_and_traceback(run, tmp_path):
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv, __name__)\n1 / 0\n")
    done = run("program.py", "--help")
    assert done.returncode == 1
    assert done.stdout == "['program.py', '--help'] __main__\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "program.py" in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert run("-m", "program").stdout.endswith("program.py'] __main__\n")


def test_help_tells_how_to_run_a_program(run):
    done = run("--help")
    assert done.returncode == 0
    assert "intel_npu_acceleration_library" in done.stdout


@pytest.mark.parametrize(
    "words, code",
    [
        ([], "script-missing"),
        (["-m"], "script-missing"),
        (["absent.py"], "script-missing"),
        (["-m", "absent"], "module-missing"),
    ],
)
def test_what_is_not_there_is_one_sentence(run, words, code):
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("npu_llm.compat: ")
    assert done.stderr.endswith(f"[{code}]\n")
