"""What torch computes for a few tokens, kept beside a program to compare its results with.

It is small, and written while a model is built and its weights are available, so that a program
which is compiled later or on another machine can be compared without them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from npu_llm.cache_names import CACHES
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.progress import Advance, counted_modules
from npu_llm.verification.eager_weights import EagerWeights, Integers, Rounding

__all__ = ["TorchReference", "compute_reference", "read_reference"]

# Tokens after a first piece of as many as there are heads: three one by one, and three at once.
_REST = 6
_FEWEST = 9
_MOST_HEADS = 64
# How far results in another order may be off to count as rounding, as a share of their size.
_NEAR = 1e-2
# Tokens whose logits are kept, at most.
_ROWS = 16


@dataclass(frozen=True)
class TorchReference:
    """A short sequence and its logits.

    Attributes:
        ids: (tokens,) int64.
        rows: the tokens whose logits are known, ascending.
        logits: (rows, vocabulary) float32, by torch in float32 with the program's weights.
        rounded: the same with values rounded as the program's arithmetic rounds them, which shows
            how far the model spreads rounding.
        heads: query heads of a layer.
        kv_heads: heads of keys and values.
        is_routed: whether tokens choose among experts; rounding may then change the choice.
        precision: the dtype to which `rounded` is rounded: float32, bfloat16 or float16.
    """

    ids: torch.Tensor
    rows: tuple[int, ...]
    logits: torch.Tensor
    rounded: torch.Tensor
    heads: int
    kv_heads: int
    is_routed: bool
    precision: str

    def with_more_rounding(self, factor: float, precision: str) -> TorchReference:
        """Returns the same for another precision, whose rounding is larger by a factor."""
        rounded = self.logits + factor * (self.rounded - self.logits)
        return replace(self, rounded=rounded, precision=precision)

    def write(self, path: Path) -> None:
        """Writes the reference, for `read_reference`."""
        about = {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "is_routed": self.is_routed,
            "precision": self.precision,
        }
        tensors = {
            "ids": self.ids,
            "rows": torch.tensor(self.rows),
            "logits": self.logits,
            "rounded": self.rounded,
        }
        save_file(tensors, path, {"about": json.dumps(about)})


def read_reference(path: Path) -> TorchReference | None:
    """Reads a reference; returns None if there is none."""
    if not path.is_file():
        return None
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in ("ids", "rows", "logits", "rounded")}
    rows = tuple(tensors.pop("rows").tolist())
    return TorchReference(rows=rows, **tensors, **about)


def compute_reference(
    model: Any,
    weights: StreamedWeights,
    *,
    compressed: Integers | None,
    rounding: Rounding,
    context: int | None,
    has_states: bool = False,
    on_progress: Advance = lambda share, doing: None,
) -> TorchReference:
    """Runs a model in torch.

    Args:
        model: a decoder-only transformers model in float32, on cpu.
        weights: the values of its parameters.
        compressed: which of them the program holds as integers.
        rounding: what the program's arithmetic does to values.
        context: how many tokens the model was made for; None if nothing sets a limit.
        has_states: whether it keeps states, which its code computes in another order token by
            token than for all tokens at once: how far these differ counts as rounding.
        on_progress: called with the share that is done, 0.0 to 1.0, and where it is.
    """
    config = model.config.get_text_config()
    heads = _heads(config)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    ids = _ids(int(config.vocab_size), heads, context)
    rows = _rows(len(ids), heads, kv_heads)

    def run(how: Rounding | None) -> torch.Tensor:
        real = EagerWeights(weights, compressed, rounding=how)
        with _experts_one_by_one(model), torch.no_grad(), real:
            return _logits(model, ids, rows)

    with counted_modules(model, on_progress, runs=2):
        logits, rounded = run(None), run(rounding)
    if has_states:
        with EagerWeights(weights, compressed, rounding=None), torch.no_grad():
            rounded = _farther(logits, rounded, _token_by_token(model, ids, rows))
    return TorchReference(
        ids=ids,
        rows=rows,
        logits=logits,
        rounded=rounded,
        heads=heads,
        kv_heads=kv_heads,
        is_routed=_is_routed(config),
        precision=str(rounding.dtype).removeprefix("torch."),
    )


def _heads(config: Any) -> int:
    for name in ("num_attention_heads", "n_head", "n_heads", "num_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads > 0:
            return min(heads, _MOST_HEADS)
    return 1


def _ids(vocabulary: int, heads: int, context: int | None) -> torch.Tensor:
    """Returns tokens drawn from the whole vocabulary, the same each time."""
    count = max(heads + _REST, _FEWEST)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocabulary, (min(count, context or count),), generator=generator)


def _rows(tokens: int, heads: int, kv_heads: int) -> tuple[int, ...]:
    """Returns the tokens whose logits are kept: the last of each piece that a check runs."""
    wanted = {0, *range(4, 8), kv_heads - 1, heads // 2, heads - 2, heads - 1}
    wanted |= set(range(heads, heads + _REST))
    return tuple(sorted(row for row in wanted if 0 <= row < tokens))


def _is_routed(config: Any) -> bool:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in names)


def _logits(model: Any, ids: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
    """Returns the logits of some tokens: (rows, vocabulary) float32."""
    kept = torch.tensor(rows)
    arguments: dict[str, Any] = {"input_ids": ids[None], "use_cache": False, "return_dict": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        found = model(**arguments, logits_to_keep=kept).logits
    else:
        found = model(**arguments).logits[:, kept]
    logits: torch.Tensor = found[0].float().contiguous()
    return logits


def _token_by_token(model: Any, ids: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor | None:
    """Returns the same as _logits by the model's own cache; None if it does not return one."""
    cache: dict[str, Any] = {}
    logits: list[torch.Tensor] = []
    for token in ids:
        output = model(input_ids=token.view(1, 1), use_cache=True, return_dict=True, **cache)
        returned = {name: getattr(output, name, None) for name in CACHES}
        cache = {name: kept for name, kept in returned.items() if kept is not None}
        if not cache:
            return None
        logits.append(output.logits[0, -1].float())
    return torch.stack([logits[row] for row in rows])


def _farther(
    logits: torch.Tensor, rounded: torch.Tensor, other: torch.Tensor | None
) -> torch.Tensor:
    """Returns of two results the one that is farther off, if the other one is near at all."""
    if other is None:
        return rounded
    distance = float((other - logits).norm())
    is_near = distance <= _NEAR * float(logits.norm())
    return other if is_near and distance > float((rounded - logits).norm()) else rounded


@contextmanager
def _experts_one_by_one(model: Any) -> Iterator[None]:
    """Makes experts run one after the other, so that their weights are not copied per token."""
    choose = getattr(model, "set_experts_implementation", None)
    if choose is None or not _is_routed(model.config.get_text_config()):
        yield
        return
    choose("eager")
    try:
        yield
    finally:
        choose("batched_mm")
