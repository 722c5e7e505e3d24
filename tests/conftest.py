"""What the integration tests share: fresh processes, and one small model on disk.

Tests of a single package do not live here but in that package's own tests directory.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")

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
    """Runs a command of this environment in a directory of its own, with the tests' cache."""

    def run(
        *command: str, timeout_s: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        programs = Path(sys.executable).parent
        first = str(programs / command[0])
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NPU_")}
        return subprocess.run(
            [first, *command[1:]],
            cwd=tmp_path,
            env={**kept, "XDG_CACHE_HOME": str(cache), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def pip() -> Callable[..., None]:
    """Runs pip of this environment, which must succeed."""

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
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
