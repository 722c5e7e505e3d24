"""What long work on a model reports as it proceeds: named stages, and how much of each is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["MERGE_STAGES", "STAGES", "Progress", "ProgressListener", "Stage"]


@dataclass(frozen=True)
class Stage:
    """One step of loading, or of other work on a model.

    Attributes:
        name: the key that code uses.
        title: what a user reads.
        weight: its usual share of the whole, in percent.
    """

    name: str
    title: str
    weight: float


# In order. The shares are those of SmolLM2-135M from a GGUF file on 2 cores (2026-11-20).
STAGES: tuple[Stage, ...] = (
    Stage("check", "checking the model's files", 1),
    Stage("weights", "loading weights", 43),
    Stage("tokenizer", "reading the tokenizer", 6),
    Stage("capture", "tracing one step", 23),
    Stage("lower", "lowering to a program", 2),
    Stage("compress", "compressing weights", 12),
    Stage("reference", "computing a few tokens in torch", 1),
    Stage("save", "writing the compile cache", 5),
    Stage("compile", "compiling for the device", 7),
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

    def advance(self, share: float) -> None:
        """Reports how much of the running stage is done, 0.0 to 1.0."""
        if self._stage is not None:
            self._report(self._stage, min(max(share, 0.0), 1.0))

    def _report(self, stage: Stage, share: float) -> None:
        if self._listener is not None:
            self._listener(stage, share)
