"""A small checkpoint with a tokenizer, and the command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def save_tokenizer(folder) -> int:
    """Trains a byte-level tokenizer on a sentence; returns the size of its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A Llama of two layers with random weights, context 256, and its tokenizer."""
    return save_llama(tmp_path_factory.mktemp("checkpoint"), 256)


@pytest.fixture(scope="session")
def talkative(tmp_path_factory):
    """The same with a context that holds answers of seconds."""
    return save_llama(tmp_path_factory.mktemp("talkative"), 65536)


def save_llama(folder, context):
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=save_tokenizer(folder), hidden_size=32, intermediate_size=48,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=context,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


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
