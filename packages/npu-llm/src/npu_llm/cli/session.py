"""Starts a model for a command, showing device and progress, and what its answers cost."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import npu_runtime
from npu_command.host_memory import process_memory_bytes
from npu_command.output import import_notice
from npu_llm.chat.reply import Reply
from npu_llm.checkpoint.source import DEFAULT_WEIGHTS, find_installed_weights, find_source
from npu_llm.cli.arguments import SAMPLING, file_options
from npu_llm.cli.terminal import Display
from npu_llm.errors import missing_tokenizer
from npu_llm.generation.language_model import LanguageModel
from npu_llm.generation.lazy_model import load
from npu_llm.models.entry import is_exported
from npu_llm.models.load_options import LoadOptions

__all__ = ["be_quiet", "figures", "generation_options", "start"]

_QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
# SmolLM2's card recommends these; sampled more freely, a model of its size loses the thread.
_TEMPERATURE, _TOP_P = 0.2, 0.9


def start(options: argparse.Namespace, display: Display, *, needs_tokenizer: bool = True) -> Any:
    """Starts the model that the options name.

    Returns:
        A LazyModel, with a tokenizer if that is needed.

    Raises:
        NpuError: if it cannot start.
    """
    asked = {
        name: getattr(options, name)
        for name in (
            "dtype",
            "pipeline",
            "max_context",
            "kv_cache",
            "sparse_attention",
            "verify",
            "cache_dir",
        )
    } | file_options(options)
    LoadOptions(**asked)  # refuses bad ones before anything is printed
    with import_notice():
        device = npu_runtime.device_info()
    display.line(f"device: {device.device}, {device.full_name} ({device.reason})")
    path: str | Path = options.model
    if options.model is None:
        source = find_installed_weights()
        display.line(f"model: {source.name}, from the installed {DEFAULT_WEIGHTS}")
        path = source.path
    if needs_tokenizer:
        _check_tokenizer(path)
    be_quiet()
    with display.progress() as listener:
        model = load(path, **asked, on_progress=listener)
    if needs_tokenizer and not model.has_tokenizer:
        raise missing_tokenizer(path)
    display.line(_how_it_started(model))
    if model.report.weights is not None:
        display.line(f"weights: {model.report.weights}")
    longest = model.entry.facts.long_context
    if longest is not None and model.entry.max_context is None:
        display.line(
            f"context: {model.context_length:,} tokens; --max-context N, at most {longest:,}, "
            "takes the rotary factors for long texts"
        )
    for name, said in _attention(model).items():
        display.line(f"{name}: {said}")
    if model.verification.status != "right":
        display.line(f"program: {model.verification}")
    if getattr(options, "seed", None) is not None:
        import torch

        torch.manual_seed(options.seed)
    return model


def generation_options(options: argparse.Namespace, model: LanguageModel) -> dict[str, Any]:
    """Returns the arguments of ChatSession for the command's options."""
    chosen: dict[str, Any] = {"max_new_tokens": options.max_new_tokens}
    chosen |= {
        name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None
    }
    if options.stop:
        chosen["stop_strings"] = options.stop
    if options.greedy:
        return chosen | {"do_sample": False}
    chosen["do_sample"] = True
    if options.temperature is not None:
        chosen["temperature"] = options.temperature
    elif not model.generation_defaults.get("do_sample"):
        chosen = {"temperature": _TEMPERATURE, "top_p": _TOP_P} | chosen
    return chosen


def figures(model: LanguageModel, reply: Reply) -> dict[str, str]:
    """Returns the rows of the table that follows an answer."""
    peak, _ = process_memory_bytes()
    report = model.report
    first, rate = reply.time_to_first_token_s, reply.tokens_per_s
    compiled = f"{report.compile_time_s:.2f} s"
    if report.from_cache:
        compiled = f"from cache, loaded in {compiled}"
    return {
        "device": npu_runtime.device_info().device,
        "pipeline": _pipeline(model),
        "precision": model.precision.name,
        **_attention(model),
        "program": str(model.verification),
        "compile time": compiled,
        "prompt": f"{reply.prompt_tokens:,} tokens",
        "answer": f"{reply.answer_tokens:,} tokens",
        "time to first token": "none came" if first is None else f"{first:.3f} s",
        "speed": "one token only" if rate is None else f"{rate:.1f} tokens/s",
        "peak memory": f"{peak / 1e6:,.0f} MB",
    }


def _attention(model: Any) -> dict[str, str]:
    """Returns the row about sparse attention, if the user asked for it."""
    chosen = model.sparse_attention
    return {} if chosen is None else {"attention": f"sparse, to {chosen} positions"}


def _pipeline(model: Any) -> str:
    """Returns which pipeline runs, and why not that of kernels where it was wanted."""
    why = model.why_not_kernels
    return str(model.pipeline) if why is None else f"{model.pipeline}, as {why}"


def be_quiet() -> None:
    """Silences transformers' advice and progress bars; its errors are still shown."""
    if "transformers" not in sys.modules:
        # Before it is imported, which takes a second and can happen while the model loads.
        os.environ.update(_QUIET)
        return
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _check_tokenizer(path: str | Path) -> None:
    """Refuses a checkpoint folder without a tokenizer, before minutes are spent on it."""
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file() or is_exported(folder):
        return
    if not find_source(folder).has_tokenizer:
        raise missing_tokenizer(path)


def _how_it_started(model: Any) -> str:
    report = model.report
    if report.compiled_because is not None and not report.from_cache:
        return f"recompiled: {report.compiled_because}"
    if report.from_cache:
        return "started from the compile cache"
    if report.entry_from_cache:
        return "program from the compile cache, recompiled for this device"
    return "compiled and kept in the compile cache: the next start is faster"
