"""A small model that translates, and a run of a command in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from npu_llm import NPUModelForSeq2SeqLM
from npu_llm.cli import main


@pytest.fixture(scope="session")
def m2m(shared):
    """A folder with a small T5 and a tokenizer that has languages as NLLB's has."""
    folder = shared.checkpoint("translator", _save)
    shared.load(NPUModelForSeq2SeqLM, folder, dtype="float32")
    return folder


def _save(folder):
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += [(letter, -2.0) for letter in "▁abcdefghijklmnopqrstuvwxyz"]
    tokenizer = transformers.T5Tokenizer(vocab=vocabulary, extra_ids=0)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4,
        decoder_start_token_id=tokenizer.pad_token_id, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)
    model.save_pretrained(folder)


@pytest.fixture
def run_task(shared, capsys):
    """run_task(command, model, *arguments): the exit code, and both outputs."""

    def run(command, model, *arguments):
        place = ("--cache-dir", str(shared.cache_dir(Path(model))))
        capsys.readouterr()
        options = ("--model", str(model), "--dtype", "float32", *place)
        code = main([command, *options, *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
