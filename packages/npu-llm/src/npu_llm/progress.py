"""What long work on a model reports as it proceeds: named stages, and how much of each is done."""

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
    """One step of loading, or of other work on a model.

    Attributes:
        name: the key that code uses.
        title: what a user reads.
        weight: its usual share of the whole, in percent.
        doing: what of it is done now, such as "tensor 12 of 272"; "" where nothing is known.
    """

    name: str
    title: str
    weight: float
    doing: str = ""


# In order. The shares are those of SmolLM2-135M from a GGUF file as a bfloat16 kernel program, on
# 2 cores that others used too (2026-11-26); such a program has "pack" in place of "compress".
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

# Those of an export for NPUs that need not be in the machine, which takes minutes.
TARGET_STAGES: tuple[Stage, ...] = (
    *(replace(stage, weight=stage.weight / 4) for stage in STAGES),
    Stage("blobs", "compiling for NPUs", 75),
)

# Those of writing a model with adapters merged into it. The shares are those of the same file and
# an adapter of 90 layers (2026-11-25).
MERGE_STAGES: tuple[Stage, ...] = (
    Stage("weights", "loading weights", 70),
    Stage("merge", "merging adapters", 3),
    Stage("save", "writing the model", 27),
)

# Called with the stage and the share of it that is done, 0.0 to 1.0.
ProgressListener = Callable[[Stage, float], None]
# Called with the share of the running stage that is done, and what is being done.
Advance = Callable[[float, str], None]


class Progress:
    """Reports the stages of one work to a listener, and marks each as a span."""

    def __init__(
        self, listener: ProgressListener | None = None, *, stages: Sequence[Stage] = STAGES
    ) -> None:
        self._listener = listener
        self._stages = stages
        self._stage: Stage | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Runs one stage; `advance` within it reports its share."""
        from npu_runtime import observe  # late: it imports torch, and help says the stages without

        stage = next(stage for stage in self._stages if stage.name == name)
        self._stage = stage
        self._report(stage, 0.0)
        with observe.span("load", stage.title):
            yield
        self._report(stage, 1.0)
        self._stage = None

    def advance(self, share: float, doing: str = "") -> None:
        """Reports how much of the running stage is done, 0.0 to 1.0, and what is being done."""
        if self._stage is not None:
            self._report(replace(self._stage, doing=doing), min(max(share, 0.0), 1.0))

    def _report(self, stage: Stage, share: float) -> None:
        if self._listener is not None:
            self._listener(stage, share)


@contextmanager
def counted_modules(
    model: Any, advance: Advance, *, runs: int = 1
) -> Iterator[Callable[[Any], None]]:
    """Reports which of a model's innermost modules have run; yields what counts one that did not.

    Args:
        model: a torch module.
        advance: see Advance.
        runs: how often the model is to run.
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
