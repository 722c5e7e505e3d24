"""KnownModel: a GGUF decoder with a predefined step, without transformers or tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import torch

from npu_llm.capture.compression import Compression
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.errors import ModelError
from npu_llm.gguf.description import Description
from npu_llm.gguf.tokenizer import chat_template, tokenizer_files
from npu_llm.gguf.vocabulary import generation_tokens, has_vocabulary
from npu_llm.gguf.weights import Weight
from npu_llm.models.kernel_step import POSITIONS, KernelStep, PackedParameters, rounding_in
from npu_llm.models.known_steps import Decoder, Rope, known_decoder, parameter_shapes, write_step
from npu_llm.models.plain_decoder import plain_logits
from npu_llm.precision import Precision
from npu_llm.progress import Advance
from npu_llm.verification.reference import TorchReference, make_reference

__all__ = ["KnownModel", "find_known"]

# Config attributes that do not change a step, or are already part of the rotary frequencies.
_WITHOUT_EFFECT = {
    "bos_token_id", "eos_token_id", "max_position_embeddings",
    "original_max_position_embeddings", "pad_token_id", "partial_rotary_factor",
    "rope_parameters", "use_sliding_window",
}  # fmt: skip
# Number of matrices that are read ahead, each on a thread.
_AHEAD = 2
# Elements of a head that are in memory as float32 at a time; as many again are read ahead.
_PART = 1 << 21


def find_known(source: ModelSource) -> KnownModel | None:
    """Returns the model of a GGUF file if its step is predefined; None otherwise.

    An invalid file counts as unknown: loading it with transformers reports the reason.

    Args:
        source: the file.
    """
    try:
        described = Description(source.path)
        row, pairs = described.row, described.keys.file.metadata
        if row.prepare is not None or row.auto != "AutoModelForCausalLM":
            return None
        config = _Noted({**described.config(), "model_type": row.model_type})
        ropes = {
            prefix.removesuffix("_"): Rope(one.frequencies, one.scale)
            for prefix, one in described.ropes.items()
        }
        decoder = known_decoder(config, ropes)
        if decoder is None or config.unread() - _WITHOUT_EFFECT or row.rope_extras(described.keys):
            return None
        shapes = parameter_shapes(decoder)
        stored = {name: described.weight(name, shape) for name, shape in shapes.items()}
        described.check_all_used()
        files = _files(decoder, dict(config), pairs)
        return None if files is None else KnownModel(decoder, stored, files)
    except (ModelError, ArithmeticError, LookupError, TypeError, ValueError):
        return None


class _Noted(Mapping[str, Any]):
    """A mapping that records the keys read from it."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._content[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def unread(self) -> set[str]:
        return set(self._content) - self._read


def _files(
    decoder: Decoder, config: Mapping[str, Any], pairs: Mapping[str, Any]
) -> dict[str, str] | None:
    """Returns transformers' files besides weights; None for an unknown tokenizer."""
    tokens = {name: value for name, value in config.items() if name.endswith("_token_id")}
    found: dict[str, str] = {}
    if has_vocabulary(pairs):
        if isinstance(chat_template(pairs), dict):
            return None
        tokens |= generation_tokens(pairs)
        try:
            found = {f"tokenizer/{name}": text for name, text in tokenizer_files(pairs).items()}
        except (ModelError, MemoryError):
            raise
        except Exception:  # noqa: BLE001  # of tokenizers, as loading with transformers reports
            return None
    version = {"transformers_version": metadata.version("transformers")}
    contents = {
        "config": {
            "architectures": [decoder.architecture], "dtype": "float32", **config, **version
        },
        "generation_config": {
            "_from_model_config": True,
            **{name: value for name, value in tokens.items() if value is not None},
            **version,
        },
    }  # fmt: skip
    texts = {
        f"{name}.json": json.dumps(content, indent=2, sort_keys=True) + "\n"
        for name, content in contents.items()
    }
    return texts | found


class KnownModel:
    """A known decoder and its step.

    Attributes:
        architecture: name of transformers' class.
        vocabulary: vocabulary size; token ids are below it.
        context_length: the model's context in tokens; None if it sets no limit.
    """

    def __init__(
        self, decoder: Decoder, stored: Mapping[str, Weight], files: Mapping[str, str]
    ) -> None:
        """Stores the content of a file.

        Args:
            decoder: the model's description.
            stored: its parameters by transformers' names.
            files: texts of the files that transformers would save, by name.
        """
        self.architecture = decoder.architecture
        self.vocabulary = decoder.vocabulary
        self.context_length: int | None = (
            json.loads(files["config.json"])["max_position_embeddings"] or None
        )
        self._decoder = decoder
        self._stored = stored
        self._files = files

    def save_files(self, folder: Path) -> dict[str, bool]:
        """Writes config, generation config and tokenizer; returns the tokenizer's features."""
        for name, content in self._files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content, "utf-8")
        has_tokenizer = "tokenizer/tokenizer.json" in self._files
        return {"has_tokenizer": has_tokenizer, "has_fast_tokenizer": has_tokenizer}

    def kernel_step(
        self, context: int | None, precision: Precision, compression: Compression
    ) -> KernelStep:
        """Writes the step as a kernel program.

        Args:
            context: the model's context in tokens; None if it sets no limit.
            precision: storage type of its weights.
            compression: quantization options, without a calibration text.

        Raises:
            LoweringError: [not-row-wise] if it is not a kernel program.
        """
        weights = StreamedWeights()
        sources = {name: weights.placeholder(one) for name, one in self._stored.items()}
        lowered = write_step(self._decoder, sources, positions=context or POSITIONS)

        def compute(packed: Path, advance: Advance) -> TorchReference:
            # Weights from the file are not read back from the packed form, so wrong packing is
            # detected.
            is_own = precision.weights == "file"
            held = None if is_own else PackedParameters(lowered, packed)
            rounding = rounding_in(precision)
            with _Values(self._stored, sources, held) as values:
                return make_reference(
                    lambda ids, rows: plain_logits(
                        self._decoder, values, ids, rows, rounding=rounding, on_progress=advance
                    ),
                    vocabulary=self.vocabulary,
                    heads=self._decoder.heads,
                    kv_heads=self._decoder.kv_heads,
                    is_routed=False,
                    rounding=rounding,
                    context=context,
                )

        return KernelStep(lowered, weights, compute)


class _Values:
    """A program's parameter values; matrices are read ahead on other threads."""

    def __init__(
        self,
        stored: Mapping[str, Weight],
        sources: Mapping[str, torch.Tensor],
        packed: PackedParameters | None,
    ) -> None:
        self._stored = stored
        self._sources = sources
        self._packed = packed
        # Embedding rows are looked up, and the head is read in parts.
        _, *rest = (name for name, one in stored.items() if len(one.shape) > 1)
        self._order = [name for name in rest if name != "lm_head.weight"]
        self._ahead: dict[str, Future[torch.Tensor]] = {}
        self._threads = ThreadPoolExecutor(_AHEAD)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def read(self, name: str) -> torch.Tensor:
        """Returns a parameter in float32."""
        if name not in self._order:
            return self._value(name)
        at = self._order.index(name)
        for other in self._order[at : at + 1 + _AHEAD]:
            if other not in self._ahead:
                self._ahead[other] = self._threads.submit(self._value, other)
        return self._ahead.pop(name).result()

    def _value(self, name: str) -> torch.Tensor:
        found = None if self._packed is None else self._packed.read(self._sources[name])
        return self._stored[name].values().float() if found is None else found

    def rows(self, name: str, indices: torch.Tensor) -> torch.Tensor:
        """Returns some rows of a matrix in float32."""
        found = None if self._packed is None else self._packed.rows(self._sources[name], indices)
        if found is not None:
            return found
        stored = self._stored[name]
        if stored.changes:
            return self._value(name)[indices]
        return stored.take(indices.numpy()).values().float()

    def parts(self, name: str) -> Iterator[torch.Tensor]:
        """Yields a matrix in float32 in groups of rows, which are also read ahead."""
        count, columns = self._stored[name].shape
        indices = torch.arange(count).tensor_split(-(-count * columns // _PART))
        ahead = [self._threads.submit(self.rows, name, one) for one in indices[:_AHEAD]]
        for one in indices[_AHEAD:]:
            ahead.append(self._threads.submit(self.rows, name, one))
            yield ahead.pop(0).result()
        yield from (one.result() for one in ahead)
