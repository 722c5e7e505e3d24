"""A small checkpoint with a tokenizer, and the command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def checkpoint(save_speaker, tmp_path_factory):
    """A Llama of two layers with random weights, context 256, and its tokenizer."""
    return save_speaker(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def talkative(save_speaker, tmp_path_factory):
    """The same with a context that holds answers of seconds."""
    return save_speaker(tmp_path_factory.mktemp("talkative"), context=65536)


@pytest.fixture(scope="session")
def wide(save_speaker, tmp_path_factory):
    """The first with layers that are wide enough for weights of four bits."""
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_key_value_heads": 2}
    return save_speaker(tmp_path_factory.mktemp("wide"), **sizes)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-cache")


@pytest.fixture
def command(checkpoint, cache_dir):
    """command(*arguments): the finished process."""

    def run(*arguments, text=None, model=checkpoint, **environment):
        options = ["--cache-dir", str(cache_dir)] + (["--model", str(model)] if model else [])
        line = [sys.executable, "-m", "npu_llm.cli", arguments[0], *options, *arguments[1:]]
        return subprocess.run(
            line, input=text, capture_output=True, text=True, check=False, timeout=300,
            env={**os.environ, **environment},
        )  # fmt: skip

    return run


@pytest.fixture
def in_process(checkpoint, cache_dir, capsys):
    """in_process(*arguments): exit code, standard output, standard error."""
    from npu_llm.cli import main

    def run(*arguments, model=checkpoint):
        options = ["--cache-dir", str(cache_dir)] + (["--model", str(model)] if model else [])
        code = main([arguments[0], *options, *arguments[1:]])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
