"""Fixtures of the integration tests: processes, their cache, and sizes of a small model.

Tests of a single package are in that package's tests directory.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import forked_python

ROOT = Path(__file__).parents[1]
PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")

# Imported once by the server that processes are forked from: Dynamo and a language model.
PRELOAD = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "transformers.models.llama.modeling_llama",
)

# For scikit-build-core: one source and no optimization, half the time of a user's build.
QUICK_BUILD = {"SKBUILD_CMAKE_BUILD_TYPE": "None", "SKBUILD_CMAKE_DEFINE": "CMAKE_UNITY_BUILD=ON"}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository, for tests that compare its pages with its sources."""
    return ROOT


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the whole run: a language model is compiled once, not in each test."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # of all processes that share the tests
    place /= "cache"
    place.mkdir(exist_ok=True)
    return place


@pytest.fixture
def run(tmp_path: Path, cache: Path) -> Run:
    """Runs a command of this environment in a separate directory, with the tests' cache. The
    process is forked from one that has imported `PRELOAD`. Use `run_new` to test the imports of a
    new interpreter.
    """

    def run(
        *command: str, timeout_s: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return forked_python.run(
            program(command),
            cwd=tmp_path,
            env=variables(cache, environment),
            timeout=timeout_s,
            preload=PRELOAD,
        )

    return run


@pytest.fixture
def start() -> Callable[..., Any]:
    """Starts a command that is forked as in `run`; takes the arguments of `subprocess.Popen`."""
    return functools.partial(forked_python.start, preload=PRELOAD)


@pytest.fixture
def run_new(tmp_path: Path, cache: Path) -> Run:
    """Runs a command as `run` does, in a new interpreter."""

    def run(
        *command: str, timeout_s: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            program(command),
            cwd=tmp_path,
            env=variables(cache, environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


def program(command: Sequence[str]) -> list[str]:
    """Returns a command with the path of its program in this environment."""
    return [str(Path(sys.executable).parent / command[0]), *command[1:]]


def variables(cache: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without variables of NPU_, with the tests' cache and with more."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NPU_")}
    return {**kept, "XDG_CACHE_HOME": str(cache), **more}


@pytest.fixture(scope="session")
def pip() -> Callable[..., None]:
    """Runs pip of this environment, which must succeed; it compiles quickly."""

    def run(*arguments: str) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
            env={**os.environ, **QUICK_BUILD, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def tiny_llama_config() -> dict[str, int]:
    """Sizes of a Llama small enough to train in a test, with grouped key and value heads."""
    return {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
