"""LoadReport: times and checks of a model load."""

from __future__ import annotations

from dataclasses import dataclass

from npu_compiler.verification.result import Verdict

__all__ = ["LoadReport"]


@dataclass(frozen=True)
class LoadReport:
    """Times and checks of a model load.

    Attributes:
        from_cache: whether nothing was traced or compiled.
        compile_time_s: seconds of compiling, or of importing the compiled form.
        device: OpenVINO's name of the device behind npu.
        verification: result of comparing the program, or the one for one token, with torch.
        entry_from_cache: whether nothing was traced.
        build_time_s: seconds of reading the files, tracing, lowering and saving; 0 from the cache.
        weights: description of how quantized weights run: kept, repacked with a loss, or rounded
            again; None for a model without quantized weights.
        compiled_because: reason that an exported folder's compiled form was not used; None if it
            was used, or does not exist.
    """

    from_cache: bool
    compile_time_s: float
    device: str
    verification: Verdict
    entry_from_cache: bool = True
    build_time_s: float = 0.0
    weights: str | None = None
    compiled_because: str | None = None
