"""LoadReport: how a start went."""

from __future__ import annotations

from dataclasses import dataclass

from npu_compiler.verification.result import Verdict

__all__ = ["LoadReport"]


@dataclass(frozen=True)
class LoadReport:
    """How a start went.

    Attributes:
        from_cache: whether nothing was traced and nothing compiled.
        compile_time_s: seconds for compiling, or for importing the compiled form.
        device: OpenVINO's name for the device that serves as npu.
        verification: the outcome of comparing the program, or the one for one token, with torch.
        entry_from_cache: whether nothing was traced.
        build_time_s: seconds for reading the files, tracing, lowering and saving; 0 from the cache.
        weights: what became of weights that others quantized, in words: whether they are kept,
            repacked with which loss, or rounded again; None for a model without.
        compiled_because: why an exported folder's own compiled form could not be used; None if it
            was used, or if there is none.
    """

    from_cache: bool
    compile_time_s: float
    device: str
    verification: Verdict
    entry_from_cache: bool = True
    build_time_s: float = 0.0
    weights: str | None = None
    compiled_because: str | None = None
