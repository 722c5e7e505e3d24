"""Model facts that are known before any weight is read: sizes, layers, heads, context.

They come from config.json and the headers of the safetensors files, from a GGUF file's header, or
from an exported folder's records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_llm.checkpoint.file_headers import TensorSpec, read_folder_headers
from npu_llm.checkpoint.quantized.signs import may_be_quantized
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import DEFAULT_PRECISION, TARGET_PRECISION, PipelineName
from npu_llm.errors import ModelError
from npu_llm.gguf.file import PLAIN_TYPES, GgufFile, GgufTensor, open_gguf
from npu_llm.precision import Precision, rounding_cost

if TYPE_CHECKING:
    from npu_llm.checkpoint.quantized.scheme import Scheme

__all__ = ["ModelFacts", "context_length", "read_config", "read_facts", "read_scheme"]

# Different config keys for the same property; the first one in a config is used.
_CONTEXT = ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length", "n_ctx")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
# The size of keys and values that all heads of a layer share (latent attention).
_LATENT = "kv_lora_rank"
# Names of LongRoPE in configs, and the token limit of the short factors in Phi-3's class.
_LONG_ROPES = ("longrope", "su")
_PHI_CONTEXT = 4096
_MAPPED = {"F32", "BF16", "F16"}
# The blocks that int8 and int4 keep unchanged (npu_llm.models.kernel_step).
_HELD_AS_INTEGERS = "Q4_0"
# Weight files in formats that transformers does not look for.
_OTHER_WEIGHTS = {".bin", ".ckpt", ".h5", ".msgpack", ".onnx", ".pkl", ".pt", ".pth"}
_NAMES_OF_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Bits per element of repacked types, see npu_llm.gguf.repacking, which imports gguf.
_BITS_OF_REPACKED = {"TQ1_0": 2.625, "TQ2_0": 2.625} | dict.fromkeys(
    ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), 6.5625
)
_FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelFacts:
    """A model in numbers.

    Attributes:
        architecture: transformers' name for its kind, such as "llama".
        parameters: number of weights; shared ones count once.
        matrix_parameters: number of weights that quantization compresses.
        table_parameters: number of weights in an embedding that no matrix product reads.
        layers: number of layers with keys and values.
        hidden_size: width of the residual stream.
        heads: query heads per layer.
        kv_heads: key and value heads per layer; 1 if heads share latent ones.
        head_dim: width of a head; of the latent keys and values if heads share them.
        vocabulary: vocabulary size; token ids are below it.
        context_length: the model's context in tokens; None if it sets no limit.
        stored_bytes: bytes of the weights on disk.
        is_tied: whether the embedding is also the head.
        is_mapped: whether the weights can stay in their files until each is needed.
        picked_tokens: number of tokens that an indexer selects for each token; 0 without one.
        quantization: description of the checkpoint's quantization; None for floats.
        integer_bits: bits of integers that kernels can keep; 0 for none, and for a GGUF file:
            kernels keep its blocks.
        own_precision: name of the files' precision.
        own_bytes: bytes of the weights in kernels in that precision.
        is_gguf: whether the files are a GGUF file.
        long_context: context with the rotary factors for long texts, if there are any beyond
            context_length.
    """

    architecture: str
    parameters: int
    matrix_parameters: int
    table_parameters: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_length: int | None
    stored_bytes: int
    is_tied: bool
    is_mapped: bool
    picked_tokens: int = 0
    quantization: str | None = None
    integer_bits: int = 0
    own_precision: str = DEFAULT_PRECISION
    own_bytes: int = 0
    is_gguf: bool = False
    long_context: int | None = None

    @property
    def longest_context(self) -> int | None:
        """The model's context with any rotary factors, in tokens; None if it sets no limit."""
        return self.long_context or self.context_length

    def default_precision(self, pipeline: PipelineName, *, is_for_npus: bool = False) -> str:
        """Returns the name of the default precision.

        Args:
            pipeline: pipeline of the model; only kernels compute from blocks and integers.
            is_for_npus: whether the target is an NPU.
        """
        if is_for_npus:
            return TARGET_PRECISION
        is_held = pipeline == "kernels" or self.own_precision != "file"
        is_own = is_held and (self.is_gguf or self.own_precision == "file")
        return self.own_precision if is_own else DEFAULT_PRECISION

    def how_weights_run(
        self, precision: Precision, pipeline: PipelineName, computed_in: str
    ) -> str | None:
        """Describes how a GGUF file's or a quantized checkpoint's weights run.

        Args:
            precision: precision of the loaded model.
            pipeline: pipeline of the model.
            computed_in: the dtype of the arithmetic on the device.

        Returns:
            None for weights that run as stored, and for other models.
        """
        if self.quantization is None:
            return self._how_floats_run(precision, computed_in) if self.is_gguf else None
        stored = precision.weights
        is_integer = stored in ("int8", "int4")
        has_held = is_integer and _HELD_AS_INTEGERS in self.quantization
        is_held = (
            stored == "file"
            or (is_integer and self.quantization == f"GGUF: {_HELD_AS_INTEGERS}")
            or (stored == "int8" and self.integer_bits > 0)
            or (stored == "int4" and 0 < self.integer_bits <= 4)
        )
        if self.own_precision != "file":
            return f"{self.quantization}; stored in {stored}"
        if pipeline != "kernels":
            why = ", since only the kernels pipeline computes from such weights"
        elif is_held:
            return f"{self.quantization}; kept as they are"
        else:
            why = f", except {_HELD_AS_INTEGERS}, which is kept" if has_held else ""
            why += rounding_cost(self.quantization, precision)
        return f"{self.quantization}; rounded again to {stored}{why}"

    def _how_floats_run(self, precision: Precision, computed_in: str) -> str | None:
        own, stored = self.own_precision, precision.weights
        parts = [] if stored == own else [f"stored in {stored}"]
        if computed_in not in (own, stored):
            parts.append(f"computed in {computed_in}")
        return f"GGUF: {own}; {', '.join(parts)}" if parts else None

    def as_dict(self) -> dict[str, Any]:
        """Returns the attributes for JSON."""
        return asdict(self)


def read_facts(source: ModelSource) -> ModelFacts:
    """Reads a model's facts, only from headers.

    Args:
        source: a checkpoint folder or a GGUF file.

    Raises:
        ModelError: [config-unreadable] for an invalid config.json, [weights-missing] for a folder
            without weights that transformers can load, and the errors of
            npu_llm.checkpoint.file_headers and npu_llm.gguf.file.
    """
    if source.gguf_file is not None:
        return _from_gguf(open_gguf(source.path))
    config = read_config(source.folder)
    tensors = read_folder_headers(source.folder)
    scheme = read_scheme(source.folder, config, tensors)
    loaded = ("*.safetensors", "pytorch_model*.bin")
    if not tensors and not any(any(source.folder.glob(names)) for names in loaded):
        raise _without_weights(source.folder)
    return _from_config(config, tensors.values(), source.folder, scheme)


def read_config(folder: Path) -> dict[str, Any]:
    """Reads config.json.

    Raises:
        ModelError: [config-unreadable] if it is not a JSON object with a model_type.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as failure:
        raise _unreadable(path, str(failure)) from failure
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise _unreadable(path, "it names no model_type")
    return config


def read_scheme(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorSpec]
) -> Scheme | None:
    """Detects how a checkpoint is quantized; None if it is not.

    Raises:
        ModelError: the errors of npu_llm.checkpoint.quantized.scheme.find_scheme.
    """
    if not may_be_quantized(folder, config, tensors):
        return None
    from npu_llm.checkpoint.quantized.scheme import find_scheme  # imports torch

    return find_scheme(folder, config, tensors)


def context_length(config: Mapping[str, Any]) -> int | None:
    """Returns the default context of a model in tokens; None if its config sets no limit.

    With separate rotary factors for long texts (LongRoPE, arXiv:2402.13753), this is the limit of
    the short factors.
    """
    inner = _of_text(config)
    longest = _number(inner, _CONTEXT) or None
    ropes = inner.get("rope_parameters") or inner.get("rope_scaling") or {}
    for one in (ropes, *(part for part in ropes.values() if isinstance(part, dict))):
        if one.get("rope_type", one.get("type")) in _LONG_ROPES:
            original = "original_max_position_embeddings"
            default = _PHI_CONTEXT if inner.get("model_type") == "phi3" else 0
            short = _number(inner, (original,)) or _number(one, (original,)) or default
            return min(short, longest or short) or longest
    return longest


def needs_long_ropes(source: ModelSource, max_context: int | None) -> bool:
    """Whether this many tokens need a model's rotary factors for long texts; see context_length."""
    if max_context is None or source.gguf_file is not None:
        return False
    config = read_config(source.folder)
    short, longest = context_length(config), _number(_of_text(config), _CONTEXT)
    return short is not None and short < max_context <= longest


def _without_weights(folder: Path) -> ModelError:
    other = sorted(file.name for file in folder.iterdir() if file.suffix in _OTHER_WEIGHTS)
    return ModelError(
        f"`{folder}` must contain model.safetensors, or an index and the files that it names, got "
        f"{', '.join(other[:3]) or 'none'}. Get them in that format, or convert them with "
        "save_pretrained.",
        code="weights-missing",
    )


def _unreadable(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"`{path}` must be the JSON configuration of a transformers model, got: {reason}. "
        "Download the file again.",
        code="config-unreadable",
    )


def _from_config(
    config: Mapping[str, Any],
    tensors: Iterable[TensorSpec],
    folder: Path,
    scheme: Scheme | None,
) -> ModelFacts:
    inner = _of_text(config)
    layers, hidden = _number(inner, _LAYERS), _number(inner, _HIDDEN)
    heads = _number(inner, _HEADS) or 1
    listed = list(tensors)
    if listed:
        stored = sum(tensor.size_bytes for tensor in listed)
    else:  # torch's own format reveals nothing without unpickling
        stored = sum(file.stat().st_size for file in folder.glob("*.bin"))
    context, longest = context_length(config), _number(inner, _CONTEXT) or None
    kinds = {tensor.dtype for tensor in listed}
    sizes = Counter[str]()
    for tensor in listed:
        sizes[tensor.dtype] += tensor.size_bytes
    floats = [kind for kind, _ in sizes.most_common() if kind in _NAMES_OF_FLOATS]
    own = _NAMES_OF_FLOATS[floats[0]] if floats else DEFAULT_PRECISION
    integer_bits = 0 if scheme is None else scheme.integer_bits
    if scheme is not None:
        listed = scheme.tensors
        kinds = {tensor.dtype for tensor in scheme.plain.values()}
    has_head = any("lm_head" in tensor.name or "embed_out" in tensor.name for tensor in listed)
    is_tied = not has_head if listed else bool(inner.get("tie_word_embeddings"))
    parameters = sum(tensor.elements for tensor in listed)
    if not listed:
        parameters = stored // _FLOAT_BYTES.get(str(inner.get("torch_dtype")), 4)
    tables = sum(tensor.elements for tensor in listed if _is_table(tensor.name))
    matrices = sum(tensor.elements for tensor in listed if len(tensor.shape) > 1)
    return ModelFacts(
        architecture=str(config["model_type"]),
        parameters=parameters,
        matrix_parameters=matrices - (0 if is_tied else tables) if listed else parameters,
        table_parameters=0 if is_tied else tables,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=_kv_heads(inner, heads),
        head_dim=_number(inner, (_LATENT, "head_dim")) or hidden // heads,
        vocabulary=_number(inner, ("vocab_size",)),
        context_length=context,
        stored_bytes=stored,
        is_tied=is_tied,
        is_mapped=len(kinds) == 1 and kinds <= _MAPPED,
        picked_tokens=_number(inner, ("index_topk",)),
        quantization=None if scheme is None else str(scheme),
        integer_bits=integer_bits,
        own_precision="file" if scheme is not None and scheme.is_kept else own,
        own_bytes=stored,
        long_context=None if context == longest else longest,
    )


def _from_gguf(file: GgufFile) -> ModelFacts:
    kind, tensors = file.architecture, file.tensors

    def number(name: str) -> int:
        value = file.metadata.get(f"{kind}.{name}", 0)
        if isinstance(value, list):  # one per layer
            value = max((one for one in value if isinstance(one, int)), default=0)
        return value if isinstance(value, int) else 0

    kinds: Counter[str] = Counter()  # of matrices, by how many elements
    for one in tensors.values():
        if len(one.shape) > 1:
            kinds[one.type] += one.elements
    blocks = {kind: count for kind, count in kinds.items() if kind not in PLAIN_TYPES}
    floats = [kind for kind, _ in kinds.most_common() if kind in _NAMES_OF_FLOATS]
    hidden, heads = number("embedding_length"), number("attention.head_count") or 1
    is_tied = "output.weight" not in tensors
    table = tensors.get("token_embd.weight")
    tables = 0 if is_tied or table is None else table.elements
    matrices = sum(one.elements for one in tensors.values() if len(one.shape) > 1)
    latent = number("attention.kv_lora_rank")
    return ModelFacts(
        architecture=kind,
        parameters=sum(one.elements for one in tensors.values()),
        matrix_parameters=matrices - tables,
        table_parameters=tables,
        layers=number("block_count"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=1 if latent else number("attention.head_count_kv") or heads,
        head_dim=latent or number("attention.key_length") or hidden // heads,
        vocabulary=table.shape[0] if table else 0,
        context_length=number("context_length") or None,
        stored_bytes=sum(path.stat().st_size for path in file.paths),
        is_tied=is_tied,
        is_mapped=True,
        quantization=_words_of(blocks),
        own_precision="file" if blocks else _NAMES_OF_FLOATS[floats[0] if floats else "BF16"],
        own_bytes=sum(map(_kernel_bytes, tensors.values())),
        is_gguf=True,
    )


def _words_of(blocks: Mapping[str, int]) -> str | None:
    """Returns the types of blocks with their shares, the largest first."""
    if not blocks:
        return None
    whole = sum(blocks.values())
    shares = sorted(blocks.items(), key=lambda one: -one[1])
    named = [f"{kind} ({count / whole:.0%})" if len(blocks) > 1 else kind for kind, count in shares]
    return f"GGUF: {', '.join(named)}"


def _kernel_bytes(tensor: GgufTensor) -> int:
    """Returns the bytes of a tensor in kernels in the file's own precision."""
    bits = _BITS_OF_REPACKED.get(tensor.type)
    return tensor.size_bytes if bits is None else int(tensor.elements * bits / 8)


def _of_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config of the language model, which is a part of some models' configs."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else dict(config)


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    # Falcon has a flag for it.
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    if config.get(_LATENT):
        return 1
    return _number(config, ("num_key_value_heads", "num_kv_heads")) or heads


def _number(config: Mapping[str, Any], names: Iterable[str]) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _is_table(name: str) -> bool:
    parts = name.split(".")
    return len(parts) > 1 and parts[-1] == "weight" and parts[-2] in _TABLES


# Names of the token embedding in different architectures.
_TABLES = ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings")
