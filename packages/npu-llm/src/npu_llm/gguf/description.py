"""Description: a GGUF file's model according to its table row, without transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from npu_llm.errors import ModelError
from npu_llm.gguf.architectures import find_architecture
from npu_llm.gguf.file import open_gguf
from npu_llm.gguf.keys import Keys
from npu_llm.gguf.ropes import Rope
from npu_llm.gguf.rows import Architecture, At, Named
from npu_llm.gguf.weights import Weight, zeros

__all__ = ["Description"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
# Tensors of factors, which belong to the rotary positions.
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class Description:
    """A file's metadata and tensors, read by its architecture's row; each use is recorded.

    Attributes:
        keys: the file's metadata.
        row: the architecture's row.
        ropes: rotary positions by the prefix of the buffers' names.
        base: name of the base model in the class with a head.
        has_head: whether the model has a head that contains the file's tensors as its base.
    """

    keys: Keys
    row: Architecture
    ropes: Mapping[str, Rope]
    base = ""
    has_head = True

    def __init__(self, path: Path) -> None:
        """Reads the headers of a file.

        Args:
            path: the file, or any part of a split one.

        Raises:
            ModelError: [gguf-architecture] for an architecture that is not in the table,
                [gguf-metadata] for invalid rotary positions, and the errors of
                npu_llm.gguf.file.open_gguf.
        """
        self.keys = Keys(open_gguf(path))
        self.row = find_architecture(self.keys)
        self.ropes = {} if self.row.ropes is None else dict(self.row.ropes(self.keys))
        self._used = set() if self.row.ropes is None else set(_FACTORS)

    def config(self) -> dict[str, Any]:
        """Returns the config's attributes that differ from the class's defaults.

        Raises:
            ModelError: [gguf-metadata] for missing or invalid metadata.
        """
        keys, row = self.keys, self.row
        attributes = row.config_of(keys)
        partial = attributes.get("partial_rotary_factor")
        by_type = attributes.pop("partial_rotary_factor") if isinstance(partial, dict) else {}
        extras = dict(row.rope_extras(keys))
        parameters = {
            prefix.removesuffix("_"): {
                **rope.parameters(partial=by_type.get(prefix.removesuffix("_"), partial)),
                **extras,
            }
            for prefix, rope in self.ropes.items()
        }
        if parameters:
            attributes["rope_parameters"] = parameters.get("", parameters)
        special = self._special_tokens()
        return attributes | {
            name: token
            for name, token in special.items()
            if token is not None or name not in attributes
        }

    def _special_tokens(self) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
            value = self.keys.file.metadata.get(f"tokenizer.ggml.{key}_token_id")
            is_one = isinstance(value, int) and 0 <= value < self.keys.vocabulary
            found[f"{name}_token_id"] = value if is_one else None
        return found

    def weight(self, name: str, shape: tuple[int, ...]) -> Weight:
        """Returns a parameter's values.

        Args:
            name: the parameter's name in transformers.
            shape: the shape that the config implies.

        Raises:
            ModelError: [gguf-metadata] for a parameter outside the table, [weights-missing],
                [weights-shape].
        """
        weight = self._find(name, shape)
        if weight.shape != shape:
            made_of = ", ".join(one.name for one in weight.tensors[:3])
            raise ModelError(
                f"`{self.keys.file.path}` must have weights of the shapes that its metadata "
                f"implies; {made_of or name} gives {list(weight.shape)} instead of {list(shape)}. "
                "Convert the model again.",
                code="weights-shape",
            )
        self._used |= {one.name for one in (*weight.tensors, *weight.others)}
        return weight

    def _find(self, name: str, shape: tuple[int, ...]) -> Weight:
        at, row = self._at(name), self.row
        pattern = _NUMBER.sub("*", name)
        module, _, leaf = pattern.rpartition(".")
        source = self._source_of(pattern) or self._source_of(module)
        if source is None:
            raise self.keys.refuse(
                f"must be a model without {name}, which no tensor of the table provides"
            )
        if callable(source):
            if leaf == "bias" and not _has_bias(at, source):
                return zeros(*shape)
            return source(at)
        full = at.full(source)
        if not at.has(source) and any(fnmatchcase(full, f"*{one}") for one in row.optional):
            return zeros(*shape)
        return at.weight(source)

    def _source_of(self, module: str) -> Named | None:
        """Returns the source of a module's weights, in a model with or without a head."""
        named = self.row.names
        names = (module, f"{self.base}.{module}", module.removeprefix(f"{self.base}."))
        found = next((named[name] for name in names if name in named), None)
        return "cls.output" if found is None and module == "score" else found

    def has_bias(self, module: str) -> bool:
        """Whether the file has a bias for a module."""
        source = self._source_of(_NUMBER.sub("*", module + ".")[:-1])
        if source is None:
            return False
        at = self._at(f"{module}.bias")
        return _has_bias(at, source) if callable(source) else at.has(source)

    def _at(self, name: str) -> At:
        numbers = tuple(int(number) for number in _NUMBER.findall(name))
        return At(self.keys, numbers, name.rpartition(".")[2])

    def left_over(self) -> list[str]:
        """Returns the unused tensors, sorted."""
        # Layers for multi-token prediction are not run.
        keys = self.keys
        predicting = tuple(
            f"blk.{layer}." for layer in range(keys.layers, keys.number("block_count"))
        )
        unused = (*predicting, *self.row.unused, *(() if self.has_head else ("output.",)))
        return sorted(
            name
            for name in keys.file.tensors
            if name not in self._used and not name.startswith(unused)
        )

    def check_all_used(self) -> None:
        """Rejects a file with unused content.

        Raises:
            ModelError: [gguf-metadata] for unused keys of the architecture, [gguf-tensors] for
                unused tensors.
        """
        self.keys.check_all_used(self.row.without_effect)
        left, file = self.left_over(), self.keys.file
        if left:
            raise ModelError(
                f"`{file.path}` must contain only tensors that the model uses, got {len(left)} "
                f"others, such as {', '.join(left[:3])} (architecture {file.architecture!r}). "
                "Convert the model again, or use a checkpoint folder of it.",
                code="gguf-tensors",
            )


def _has_bias(at: At, source: Named) -> bool:
    try:
        assert callable(source)
        source(at)
    except ModelError:
        return False
    return True
