"""Starts a model for a command, with its progress, and reports the figures of its answers."""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from typing import Any

import npu_runtime
from npu_command.host_memory import process_memory_bytes
from npu_command.import_hooks import has_torch, start_packages
from npu_command.output import import_notice
from npu_llm.chat.reply import Reply
from npu_llm.checkpoint.source import DEFAULT_WEIGHTS, find_installed_weights, find_source
from npu_llm.cli.arguments import SAMPLING, file_options
from npu_llm.cli.terminal import Display
from npu_llm.cli.turns import finish_of
from npu_llm.errors import ModelError, missing_tokenizer
from npu_llm.generation.entry_model import EntryModel
from npu_llm.generation.exported_model import ExportedModel
from npu_llm.models.entry import Entry, is_exported, open_exported
from npu_llm.models.load_options import LoadOptions
from npu_ops.kernel_programs.native import has_programs, is_torch_loaded
from npu_runtime.config import config

__all__ = ["be_quiet", "figures", "generation_options", "start", "start_plain"]

_QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
# SmolLM2's card recommends these; sampled more freely, a model of its size loses the thread.
_TEMPERATURE, _TOP_P = 0.2, 0.9


def start(options: argparse.Namespace, display: Display, *, needs_tokenizer: bool = True) -> Any:
    """Starts the model in the options.

    Returns:
        A LazyModel, with a tokenizer if `needs_tokenizer`.

    Raises:
        NpuError: if it cannot start.
    """
    asked = _asked(options)
    with import_notice():
        start_packages()
        from npu_llm.generation.lazy_model import load

        LoadOptions(**asked)  # raises before anything is printed
        device = npu_runtime.device_info()
    _tell_device(device, display)
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
    _describe(model, display)
    if getattr(options, "seed", None) is not None:
        _seed(options.seed)
    return model


def start_plain(options: argparse.Namespace, display: Display) -> Any:
    """Starts the model in the options for text generation, without torch if possible.

    Returns:
        An ExportedModel for a kernel program in an exported folder or the compile cache, without
        further options; otherwise the result of `start`.

    Raises:
        NpuError: if it cannot start.
        ModelError: [torch-missing] if it needs torch, which is not installed.
    """
    entry = _plain_entry(options)
    if entry is None:
        if not has_torch():
            raise ModelError(
                "`--model` must be an exported kernel program, without further options, if torch "
                f"is not installed, got {options.model}. Install torch, or export the model.",
                code="torch-missing",
            )
        return start(options, display)
    if options.seed is not None:
        _seed(options.seed)
    model = ExportedModel(entry)
    if "made_with" in entry.about:  # an exported folder
        display.line("device: CPU, the host's cores (the folder holds a kernel program)")
    else:
        _tell_device(npu_runtime.device_info(), display)
    _describe(model, display)
    return model


def _seed(seed: int) -> None:
    """Makes the seeds of answers repeatable, with and without torch."""
    random.seed(seed)
    if is_torch_loaded():
        import torch

        torch.manual_seed(seed)


# Options of add_model, add_adapters and others that need `start`.
_NOT_PLAIN = ("max_context", "kv_cache", "sparse_attention", "adapter", "json_schema")


def _plain_entry(options: argparse.Namespace) -> Entry | None:
    """Returns the kernel program of the options; None if `start` is needed."""
    is_watched = config.attach or config.profile_layers  # by the profiler, which needs torch
    if is_watched or options.pipeline not in (None, "auto", "kernels"):
        return None
    if any(getattr(options, name, None) for name in _NOT_PLAIN):
        return None
    entry = _written_entry(options) if has_programs() else None
    if entry is None or entry.pipeline != "kernels" or not entry.has_fast_tokenizer:
        return None
    from npu_llm.models.kernel_loading import is_compared

    # If torch is installed, it checks a program once on each kind of processor.
    has_verdict = options.verify == "off" or (
        options.verify == "first" and is_compared(entry.compiled)
    )
    return entry if has_verdict or not has_torch() else None


def _written_entry(options: argparse.Namespace) -> Entry | None:
    """Returns the exported folder in the options, or the model's entry in the compile cache."""
    if options.model is not None and is_exported(folder := Path(options.model).expanduser()):
        return open_exported(folder) if options.dtype in (None, "auto") else None
    path = find_installed_weights().path if options.model is None else Path(options.model)
    if not has_torch() or not path.expanduser().exists():
        return None
    from npu_llm.models.lookup import locate

    return locate(path, LoadOptions(**_asked(options))).entry


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of LoadOptions."""
    names = (
        "dtype", "pipeline", "max_context", "kv_cache", "sparse_attention", "verify", "cache_dir",
    )  # fmt: skip
    return {name: getattr(options, name) for name in names} | file_options(options)


def _tell_device(device: npu_runtime.DeviceInfo, display: Display) -> None:
    display.line(f"device: {device.device}, {device.full_name} ({device.reason})")


def _describe(model: EntryModel, display: Display) -> None:
    display.line(_how_it_started(model))
    if model.report.weights is not None:
        display.line(f"weights: {model.report.weights}")
    longest = model.entry.facts.long_context
    if longest is not None and model.entry.max_context is None:
        display.line(
            f"context: {model.context_length:,} tokens; --max-context N, up to {longest:,}, uses "
            "the rotary factors for long texts"
        )
    for name, said in _attention(model).items():
        display.line(f"{name}: {said}")
    if model.verification.status != "right":
        display.line(f"program: {model.verification}")


def generation_options(options: argparse.Namespace, model: EntryModel) -> dict[str, Any]:
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


def figures(model: EntryModel, reply: Reply) -> dict[str, str]:
    """Returns the rows of the table that follows an answer."""
    peak, _ = process_memory_bytes()
    report = model.report
    first, rate = reply.time_to_first_token_s, reply.tokens_per_s
    compiled = f"{report.compile_time_s:.2f} s"
    if report.from_cache:
        compiled = f"from cache, loaded in {compiled}"
    return {
        "device": report.device,
        "pipeline": _pipeline(model),
        "precision": model.precision.name,
        **_attention(model),
        "program": str(model.verification),
        "compile time": compiled,
        "prompt": f"{reply.prompt_tokens:,} tokens",
        "answer": f"{reply.answer_tokens:,} tokens",
        "time to first token": "none came" if first is None else f"{first:.3f} s",
        "speed": "one token only" if rate is None else f"{rate:.1f} tokens/s",
        "finish reason": finish_of(reply),
        "peak memory": f"{peak / 1e6:,.0f} MB",
    }


def _attention(model: Any) -> dict[str, str]:
    """Returns the row on sparse attention, if it is on."""
    chosen = model.sparse_attention
    return {} if chosen is None else {"attention": f"sparse, to {chosen} positions"}


def _pipeline(model: Any) -> str:
    """Returns the pipeline, with the reason if it is not the requested one of kernels."""
    why = model.why_not_kernels
    return str(model.pipeline) if why is None else f"{model.pipeline}: {why}"


def be_quiet() -> None:
    """Silences transformers' warnings and progress bars, but not its errors."""
    if "transformers" not in sys.modules:
        # It is imported later, if at all: that takes a second.
        os.environ.update(_QUIET)
        return
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _check_tokenizer(path: str | Path) -> None:
    """Raises [missing-tokenizer] for a checkpoint folder without one, before it is built."""
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
