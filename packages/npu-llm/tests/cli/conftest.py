"""A small checkpoint with a tokenizer, and the command in a separate process."""

from __future__ import annotations

import os
import sys

import pytest

import forked_python
from npu_llm import NPUModelForCausalLM


@pytest.fixture(scope="session")
def checkpoint(saved_speaker):
    """A Llama of two layers with random weights, context 256, and its tokenizer."""
    return saved_speaker()


@pytest.fixture(scope="session")
def talkative(saved_speaker):
    """The same with a context that holds answers of seconds."""
    return saved_speaker(context=65536)


@pytest.fixture(scope="session")
def wide(saved_speaker):
    """The first with layers that are wide enough for weights of four bits."""
    return saved_speaker(hidden_size=64, intermediate_size=160, num_key_value_heads=2)


@pytest.fixture(scope="session")
def cache_dir(checkpoint, shared):
    """A compile cache with the first in float32."""
    shared.load(NPUModelForCausalLM, checkpoint, dtype="float32")
    return shared.cache_dir(checkpoint)


@pytest.fixture
def command(checkpoint, shared, preload):
    """command(*arguments): the finished process."""

    def run(*arguments, text=None, model=checkpoint, **environment):
        options = ["--cache-dir", str(shared.cache_dir(model)), "--model", str(model)]
        line = [sys.executable, "-m", "npu_llm.cli", arguments[0], *options, *arguments[1:]]
        variables = {**os.environ, **environment}
        return forked_python.run(line, input=text, timeout=300, env=variables, preload=preload)

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
