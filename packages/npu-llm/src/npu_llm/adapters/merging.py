"""Merges adapters into the weights of a model, saved as a transformers checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from npu_llm.adapters.lora import AdapterFile, LowRank, read_adapter
from npu_llm.checkpoint.described import check_config_suffices
from npu_llm.checkpoint.loading import load_model, load_tokenizer
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ModelError
from npu_llm.progress import MERGE_STAGES, Progress, ProgressListener
from npu_runtime.public_calls import public_call

__all__ = ["merge"]


@public_call
def merge(
    name_or_path: str | Path,
    adapters: Sequence[tuple[str | Path, float]],
    output: str | Path,
    *,
    auto: Any = AutoModelForCausalLM,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    ignore_unexpected: bool = False,
    on_progress: ProgressListener | None = None,
) -> Path:
    """Writes a model with merged adapters; supports every kind of LoRA.

    Args:
        name_or_path: a checkpoint folder, a GGUF file, or a name on the hub.
        adapters: folders from PEFT's save_pretrained, each with a scale.
        output: the folder to write.
        auto: transformers' auto class for the model's task, such as AutoModelForCTC; by default
            that of language models.
        gguf_file: file name of the GGUF file in a folder.
        trust_remote_code: whether to run model code from the checkpoint.
        ignore_unexpected: whether to ignore tensors that the model does not use.
        on_progress: called with a stage and its share done, 0.0 to 1.0.

    Returns:
        The folder, with weights in float32 and the tokenizer.

    Raises:
        ModelError: if the model or an adapter cannot be read, [adapter-base] if they do not match,
            or [gguf-config] for a GGUF file with a model that config.json cannot describe.
    """
    files = [(read_adapter(path), scale) for path, scale in adapters]
    source = find_source(name_or_path, gguf_file=gguf_file)
    progress = Progress(on_progress, stages=MERGE_STAGES)
    with progress.stage("weights"):
        model, weights = load_model(
            source,
            auto=auto,
            trust_remote_code=trust_remote_code,
            ignore_unexpected=ignore_unexpected,
        )
        if source.gguf_file is not None:
            check_config_suffices(model, source.path, auto=auto)
        weights.fill()
    with progress.stage("merge"), torch.no_grad():
        count = sum(len(file.layers) for file, _ in files)
        done = 0
        for file, scale in files:
            for _ in _merge(model, file, scale):
                done += 1
                progress.advance(done / count)
    folder = Path(output)
    with progress.stage("save"):
        model.save_pretrained(folder)
        tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    return folder


def _merge(model: Any, file: AdapterFile, scale: float) -> Iterator[None]:
    """Merges one adapter; yields after each of its layers."""
    for path, layer in file.layers.items():
        _merge_layer(file, path, _weight_of(model, path, file), layer, scale)
        yield
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, value in file.replaced.items():
        if name not in parameters or parameters[name].shape != value.shape:
            raise _other_base(file, f"{name} {tuple(value.shape)}")
        parameters[name].copy_(value)


def _weight_of(model: Any, path: str, file: AdapterFile) -> torch.Tensor:
    try:
        module = model.get_submodule(path)
    except AttributeError:
        raise _other_base(file, path) from None
    weight: torch.Tensor = module.weight
    # transformers' Conv1D of GPT-2 has (inputs, outputs).
    return weight.t() if type(module).__name__ == "Conv1D" else weight


def _merge_layer(
    file: AdapterFile, path: str, weight: torch.Tensor, layer: LowRank, scale: float
) -> None:
    delta = layer.delta(scale)
    if delta.shape != weight.shape:
        raise _other_base(file, f"{path} {tuple(delta.shape)} for {tuple(weight.shape)}")
    changed = weight + delta
    if layer.magnitude is not None:
        # DoRA: the direction of each output's weights times a learned length (Liu et al., 2024).
        lengths = changed.norm(dim=1, keepdim=True)
        changed = changed * (layer.magnitude.reshape(-1, 1) / lengths)
    weight.copy_(changed)


def _other_base(file: AdapterFile, what: str) -> ModelError:
    return ModelError(
        f"`{file.path}` must change layers that the model has, with the same sizes, got {what}. "
        "Pass the model that it was trained on.",
        code="adapter-base",
    )
