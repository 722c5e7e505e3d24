"""What generate and chat share: starting a model with its device and progress shown, and asking it.

The commands themselves are npu_llm.cli.generate and npu_llm.cli.chat.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import npu_runtime
from npu_llm.cli.display import Display
from npu_llm.cli.streamer import AnswerStreamer
from npu_llm.errors import ModelError
from npu_llm.precision import parse_precision
from npu_llm.source import DEFAULT_WEIGHTS, find_installed_weights

__all__ = ["encode", "figures", "generation_options", "peak_memory_bytes", "start"]

# SmolLM2's card recommends these; sampled more freely, a model of its size loses the thread.
_TEMPERATURE, _TOP_P = 0.2, 0.9


def start(options: argparse.Namespace, display: Display) -> Any:
    """Starts the model that the options name.

    Returns:
        An NPUModelForCausalLM that has a tokenizer.

    Raises:
        NpuError: for whatever keeps it from starting.
    """
    precision = parse_precision(options.dtype)
    device = npu_runtime.device_info()
    display.line(f"device: {device.device}, {device.full_name} ({device.reason})")
    path: str | Path = options.model
    if options.model is None:
        source = find_installed_weights()
        display.line(f"model: {source.name}, from the installed {DEFAULT_WEIGHTS}")
        path = source.path
    with display.progress() as listener:
        _be_quiet()
        from npu_llm.model import NPUModelForCausalLM

        model = NPUModelForCausalLM.from_pretrained(
            path, dtype=precision.name, cache_dir=options.cache_dir, on_progress=listener
        )
    if model.tokenizer is None:
        raise ModelError(
            f"{path}: the commands need the model's tokenizer; got none beside the weights. "
            "Put tokenizer.json and tokenizer_config.json there.",
            code="missing-tokenizer",
        )
    display.line(_how_it_started(model))
    if options.seed is not None:
        import torch

        torch.manual_seed(options.seed)
    return model


def encode(model: Any, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Turns a conversation into the model's inputs, by its chat template where it has one.

    Args:
        model: what `start` gave.
        messages: role and content of each turn.

    Returns:
        input_ids and attention_mask, each (1, tokens) int64.
    """
    tokenizer = model.tokenizer
    if getattr(tokenizer, "chat_template", None):
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        encoded = tokenizer("\n".join(turn["content"] for turn in messages), return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def generation_options(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """The arguments of generate that the command's options ask for."""
    chosen: dict[str, Any] = {"max_new_tokens": options.max_new_tokens}
    tokenizer = model.tokenizer
    if tokenizer.pad_token_id is not None:
        chosen["pad_token_id"] = tokenizer.pad_token_id
    if options.greedy:
        return chosen | {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    chosen["do_sample"] = True
    recommends = model.generation_config.do_sample
    if options.temperature is not None:
        chosen["temperature"] = options.temperature
    elif not recommends:
        chosen |= {"temperature": _TEMPERATURE, "top_p": _TOP_P}
    return chosen


def figures(model: Any, prompt_tokens: int, answer: AnswerStreamer) -> dict[str, str]:
    """The rows of the table that follows an answer."""
    report = model.report
    first, rate = answer.time_to_first_token_s, answer.tokens_per_s
    compiled = f"{report.compile_time_s:.2f} s"
    if report.from_cache:
        compiled = f"from cache, loaded in {compiled}"
    return {
        "device": npu_runtime.device_info().device,
        "precision": model.precision.name,
        "compile time": compiled,
        "prompt": f"{prompt_tokens:,} tokens",
        "answer": f"{len(answer.tokens):,} tokens",
        "time to first token": "none came" if first is None else f"{first:.3f} s",
        "speed": "one token only" if rate is None else f"{rate:.1f} tokens/s",
        "peak memory": f"{peak_memory_bytes() / 1e6:,.0f} MB",
    }


def peak_memory_bytes() -> int:
    """The most memory that this process has had resident (VmHWM), mapped files included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _how_it_started(model: Any) -> str:
    report = model.report
    if report.from_cache:
        return "started from the compile cache"
    if report.entry_from_cache:
        return "program from the compile cache, compiled anew for this device"
    return "compiled and kept in the compile cache: the next start is quicker"


def _be_quiet() -> None:
    """Has transformers keep its advice and its bars to itself; its errors still come."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
