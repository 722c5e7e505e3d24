"""Loads a model and its tokenizer with transformers, from a checkpoint folder or a GGUF file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from npu_llm.checkpoint.facts import read_config, read_scheme
from npu_llm.checkpoint.file_headers import read_folder_headers
from npu_llm.checkpoint.fixed_ropes import fix_ropes
from npu_llm.checkpoint.leftovers import unexpected
from npu_llm.checkpoint.processors import untrusted
from npu_llm.checkpoint.quantized.loading import LazyWeight, load_quantized, place
from npu_llm.checkpoint.quantized.signs import described_in
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.errors import ModelError
from npu_llm.gguf.file import open_gguf
from npu_llm.gguf.model import load_gguf_model
from npu_llm.gguf.tokenizer import build_tokenizer, check_tokenizer
from npu_llm.gguf.vocabulary import has_vocabulary, set_generation_tokens
from npu_llm.older_transformers import show_tokenizer_failure

try:
    from transformers.initialization import no_init_weights
except ImportError:  # before transformers 5
    from transformers.modeling_utils import no_init_weights

__all__ = ["check_loadable", "load_model", "load_tokenizer"]

# Names in the format of the dtypes in which weights can stay mapped.
_STORED = {"BF16": torch.bfloat16, "F16": torch.float16}


def load_model(
    source: ModelSource,
    *,
    auto: Any = AutoModelForCausalLM,
    trust_remote_code: bool = False,
    ignore_unexpected: bool = False,
    has_long_ropes: bool = False,
) -> tuple[Any, StreamedWeights]:
    """Loads a model on the CPU, with float32 parameters.

    The weights of a checkpoint in one 16-bit dtype stay mapped in its files, as quantized ones do;
    those of a float32 checkpoint are mapped and are the model's parameters. Those of a GGUF file
    are unpacked when they are read.

    Args:
        source: the model's files.
        auto: transformers' auto class for the task; by default causal language models.
        trust_remote_code: whether to run model code from the checkpoint.
        ignore_unexpected: whether to ignore tensors that the model does not use.
        has_long_ropes: whether rotary embeddings with separate factors for long texts use these for
            any text.

    Returns:
        A transformers model in eval mode, and the values of its parameters.

    Raises:
        ModelError: [model-unreadable] if transformers cannot load it, [weights-missing] if the
            files lack some of its weights, [weights-shape] if some have another shape,
            [weights-unexpected] if the files have weights that the model lacks,
            [unknown-architecture] if transformers does not have its architecture, [remote-code] if
            it needs code of the checkpoint that is not trusted; and the errors of
            npu_llm.checkpoint.quantized.scheme and npu_llm.gguf.model.load_gguf_model.
    """
    weights = StreamedWeights()
    if source.gguf_file is not None:
        model, in_file = load_gguf_model(source.path, auto=auto)
        with _named(source):
            set_generation_tokens(model, open_gguf(source.path).metadata)
        weights.use_placeholders(model, in_file)
        return _with_experts(model), weights
    stored: dict[str, LazyWeight] = {}
    config = read_config(source.folder)
    scheme = read_scheme(source.folder, config, read_folder_headers(source.folder))
    dtype = torch.float32 if scheme is not None else _stored_dtype(source)
    _check_architecture(config, source, auto, trust_remote_code)
    try:
        if scheme is not None:
            model, info, stored = load_quantized(
                source, scheme, auto=auto, trust_remote_code=trust_remote_code
            )
        else:
            model, info = auto.from_pretrained(
                str(source.folder),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below
                dtype=dtype,
                trust_remote_code=trust_remote_code,
            )
    except (MemoryError, ModelError):
        raise
    except Exception as failure:  # of any class: from transformers, tokenizers, the hub or a model
        raise _unreadable(source, "the model", failure) from failure
    _check_placement(source, model, info, ignore_unexpected=ignore_unexpected)
    # The model is dequantized: transformers refuses to save it with these attributes.
    for owner, name in ((model.config, "quantization_config"), (model, "hf_quantizer")):
        if hasattr(owner, name):
            delattr(owner, name)
    if dtype is not torch.float32 or stored:
        model = _in_float32(model, weights, auto, trust_remote_code, stored)
    fix_ropes(model, is_long=has_long_ropes)
    return _with_experts(model), weights


def check_loadable(
    source: ModelSource,
    *,
    auto: Any = AutoModelForCausalLM,
    trust_remote_code: bool = False,
    ignore_unexpected: bool = False,
) -> None:
    """Raises the errors of load_model for a model's config, and its tensors' names and shapes.

    Args:
        source: the model's files.
        auto: see load_model.
        trust_remote_code: see load_model.
        ignore_unexpected: see load_model.
    """
    if source.gguf_file is not None:
        load_gguf_model(source.path, auto=auto)
        with _named(source):
            check_tokenizer(open_gguf(source.path).metadata)
        return
    config, headers = read_config(source.folder), read_folder_headers(source.folder)
    _check_architecture(config, source, auto, trust_remote_code)
    scheme = read_scheme(source.folder, config, headers)
    if not headers or (scheme is None and described_in(config) is not None):
        return  # torch's own files, or weights that transformers dequantizes
    tensors = headers.values() if scheme is None else scheme.tensors
    try:
        model, info = place(source, tensors, auto=auto, trust_remote_code=trust_remote_code)
    except MemoryError:
        raise
    except Exception as failure:  # see load_model
        raise _unreadable(source, "the model", failure) from failure
    _check_placement(source, model, info, ignore_unexpected=ignore_unexpected)


def _check_placement(
    source: ModelSource, model: Any, info: dict[str, Any], *, ignore_unexpected: bool
) -> None:
    """Rejects weights of other shapes, missing weights, and unexpected weights."""
    if unfit := sorted(info["mismatched_keys"]):
        name, given, wanted = unfit[0]
        raise ModelError(
            f"`{source.path}` must have weights of the shapes that config.json implies; "
            f"{len(unfit)} differ, such as {name}: got {list(given)} instead of {list(wanted)}. "
            "Get weights and config.json of the same model.",
            code="weights-shape",
        )
    if missing := sorted(info["missing_keys"]):
        # Otherwise transformers would continue with random numbers.
        raise ModelError(
            f"`{source.path}` must contain all weights of the model; {len(missing)} are missing, "
            f"such as {missing[0]}. Get the whole checkpoint.",
            code="weights-missing",
        )
    left = [] if ignore_unexpected else unexpected(source, model, info["unexpected_keys"])
    if left:
        raise ModelError(
            f"`{source.path}` must contain only weights that {type(model).__name__} uses; "
            f"{len(left)} are unexpected, such as {', '.join(left[:3])}. Check that config.json "
            "belongs to these weights; to ignore them, which may change the results, pass "
            "ignore_unexpected=True or --ignore-unexpected.",
            code="weights-unexpected",
        )


def _with_experts(model: Any) -> Any:
    experts = getattr(model, "set_experts_implementation", None)
    if experts is not None and _has_experts(model.config):
        experts("batched_mm")  # the default needs bfloat16 and data-dependent sizes
    return model.eval()


def _stored_dtype(source: ModelSource) -> torch.dtype:
    """Returns the dtype in which a checkpoint can be mapped; float32 if it must be converted."""
    if "quantization_config" in read_config(source.folder):
        return torch.float32
    kinds = {tensor.dtype for tensor in read_folder_headers(source.folder).values()}
    return _STORED.get(kinds.pop(), torch.float32) if len(kinds) == 1 else torch.float32


def _in_float32(
    model: Any,
    weights: StreamedWeights,
    auto: Any,
    trust_remote_code: bool,
    encoded: Mapping[str, LazyWeight],
) -> Any:
    """Returns the same model with float32 parameters that refer to the given model's.

    It is created again, because values that a model computes once from its config, such as rotary
    frequencies, would otherwise have the lower precision.
    """
    config = model.config
    config.dtype = torch.float32
    with no_init_weights():
        made = auto.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    made.tie_weights()  # skipped with the initial values
    made.generation_config = model.generation_config
    stored = {**dict(model.named_parameters(remove_duplicate=False)), **encoded}
    weights.use_placeholders(made, stored)
    kept = model.state_dict()
    for name, buffer in made.named_buffers():
        if name in kept:
            buffer.copy_(kept[name])
    return made


def _check_architecture(
    config: dict[str, Any], source: ModelSource, auto: Any, trust_remote_code: bool
) -> None:
    """Rejects an architecture that transformers does not have for the task."""
    kind = config["model_type"]
    names = auto._model_mapping._model_mapping
    if kind in names:
        return
    if auto.__name__ in (config.get("auto_map") or {}):
        if not trust_remote_code:
            raise untrusted(source.path, "the model")
        return
    near = difflib.get_close_matches(kind, names, n=3)
    task = auto.__name__.removeprefix("AutoModelFor")
    what = "a language model" if auto is AutoModelForCausalLM else f"a model for {task}"
    known = kind in CONFIG_MAPPING_NAMES
    step = "Check model_type in config.json, or install a transformers that has it."
    if known:
        step = "Use a model for this task, or load this one with NPUAutoModel."
    raise ModelError(
        f"`{source.path}` must have an architecture of {what} that transformers "
        f"{metadata.version('transformers')} has, got "
        f"{kind!r}{', which it has as another kind of model' if known else ''}. "
        f"{'Similar names: ' + ', '.join(near) + '. ' if near else ''}{step}",
        code="unknown-architecture",
    )


def load_tokenizer(source: ModelSource, *, trust_remote_code: bool = False) -> Any | None:
    """Loads a model's tokenizer; returns None if it has none.

    Raises:
        ModelError: [model-unreadable] if the tokenizer cannot be loaded, [gguf-tokenizer] if that
            of a GGUF file is unsupported or inconsistent.
    """
    if source.gguf_file is not None:
        pairs = open_gguf(source.path).metadata
        with _named(source):
            return build_tokenizer(pairs) if has_vocabulary(pairs) else None
    if not source.has_tokenizer:
        return None
    try:
        with show_tokenizer_failure():
            return AutoTokenizer.from_pretrained(
                str(source.folder), trust_remote_code=trust_remote_code
            )
    except MemoryError:
        raise
    except Exception as failure:  # see above
        raise _unreadable(source, "the tokenizer", failure) from failure


@contextmanager
def _named(source: ModelSource) -> Iterator[None]:
    """Adds the file to errors about its tokenizer."""
    try:
        yield
    except MemoryError:
        raise
    except ModelError as failure:
        raise ModelError(f"{source.path}: {failure.message}", code=failure.code) from failure
    except Exception as failure:  # of any class: from transformers and tokenizers
        raise _unreadable(source, "the tokenizer", failure) from failure


def _has_experts(config: Any) -> bool:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in names)


def _unreadable(source: ModelSource, what: str, failure: Exception) -> ModelError:
    if "custom code" in str(failure):
        return untrusted(source.path, what)
    lines = str(failure).strip().splitlines()
    reason = lines[0].rstrip(".") if lines else type(failure).__name__
    return ModelError(
        f"`{source.path}` must have {what} that loads, got: {reason}. Check the files, and that "
        "transformers has the architecture.",
        code="model-unreadable",
    )
