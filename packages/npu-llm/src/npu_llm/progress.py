"""Progress reports: the named stages of long work on a model, and the share done of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "MERGE_STAGES",
    "STAGES",
    "TARGET_STAGES",
    "Advance",
    "Progress",
    "ProgressListener",
    "Stage",
    "counted_modules",
]


@dataclass(frozen=True)
class Stage:
    """One stage of loading or other work on a model.

    Attributes:
        name: the key in code.
        title: the text that users see.
        weight: its usual share of the total time, in percent.
        doing: current item, such as "tensor 12 of 272"; "" if unknown.
    """

    name: str
    title: str
    weight: float
    doing: str = ""


# In order. The shares were measured for SmolLM2-135M, from a GGUF file to a bfloat16 kernel
# program, on 2 busy cores (2026-11-26). Such a program has "pack" instead of "compress".
STAGES: tuple[Stage, ...] = (
    Stage("check", "checking the model's files", 1),
    Stage("imports", "importing torch and transformers", 18),
    Stage("weights", "loading weights", 17),
    Stage("tokenizer", "reading the tokenizer", 3),
    Stage("capture", "tracing one step", 28),
    Stage("lower", "lowering to a program", 6),
    Stage("compress", "compressing weights", 2),
    Stage("pack", "packing weights", 6),
    Stage("reference", "computing a few tokens in torch", 9),
    Stage("save", "writing the compile cache", 6),
    Stage("compile", "compiling for the device", 4),
)

# Stages of an export for NPUs, which need not be present; it takes minutes.
TARGET_STAGES: tuple[Stage, ...] = (
    *(replace(stage, weight=stage.weight / 4) for stage in STAGES),
    Stage("blobs", "compiling for NPUs", 75),
)

# Stages of writing a model with merged adapters. The shares are those of the same file and an
# adapter of 90 layers (2026-11-25).
MERGE_STAGES: tuple[Stage, ...] = (
    Stage("weights", "loading weights", 70),
    Stage("merge", "merging adapters", 3),
    Stage("save", "writing the model", 27),
)

# Called with the stage and its share done, 0.0 to 1.0.
ProgressListener = Callable[[Stage, float], None]
# Called with the running stage's share done, and the current item.
Advance = Callable[[float, str], None]


class Progress:
    """Reports the stages of one task to a listener, and marks each as a span."""

    def __init__(
        self, listener: ProgressListener | None = None, *, stages: Sequence[Stage] = STAGES
    ) -> None:
        self._listener = listener
        self._stages = stages
        self._stage: Stage | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Runs one stage; `advance` inside it reports its share."""
        from npu_runtime import observe  # imported late: loads torch, which help does without

        stage = next(stage for stage in self._stages if stage.name == name)
        self._stage = stage
        self._report(stage, 0.0)
        with observe.span("load", stage.title):
            yield
        self._report(stage, 1.0)
        self._stage = None

    def advance(self, share: float, doing: str = "") -> None:
        """Reports the running stage's share done, 0.0 to 1.0, and the current item."""
        if self._stage is not None:
            self._report(replace(self._stage, doing=doing), min(max(share, 0.0), 1.0))

    def _report(self, stage: Stage, share: float) -> None:
        if self._listener is not None:
            self._listener(stage, share)


@contextmanager
def counted_modules(
    model: Any, advance: Advance, *, runs: int = 1
) -> Iterator[Callable[[Any], None]]:
    """Reports which of a model's innermost modules have run; yields a counter of skipped ones.

    Args:
        model: a torch module.
        advance: see Advance.
        runs: number of runs of the model.
    """
    names = {module: name for name, module in model.named_modules() if not any(module.children())}
    total, done = runs * len(names), 0

    def count(module: Any) -> None:
        nonlocal done
        inner = [one for one in module.modules() if one in names]
        done = min(done + len(inner), total)
        advance(done / total, f"module {done:,} of {total:,}, {names[inner[-1]]}")

    handles = [module.register_forward_hook(lambda one, *_: count(one)) for module in names]
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()
