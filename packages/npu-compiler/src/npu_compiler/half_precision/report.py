"""What half precision did to a model, as an object, a table and JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["HalfCall", "HalfPrecision"]

_SHOWN = 20


@dataclass(frozen=True)
class HalfCall:
    """One call whose result half precision changed.

    Attributes:
        name: of the node in the captured graph.
        op: such as "aten.pow.Tensor_Scalar".
        line: "file.py:12", of the Python code; "" where it is not known.
        module: by which CompilerConfig.keep_float32 names it.
        overflowed: finite numbers of its inputs and its result that became infinite.
        invalid: results that are NaN here, with no NaN among its inputs, and not in float32.
        lost: results that became zero.
        loss: size of what its own rounding took away by the size of the result, both as roots of
            sums of squares.
        error: largest difference from float32 by the largest value there; infinity where one is
            finite and the other is not.
    """

    name: str
    op: str
    line: str
    module: str
    overflowed: int
    invalid: int
    lost: int
    loss: float
    error: float

    def __str__(self) -> str:
        said = [
            (self.overflowed, f"{self.overflowed} overflow"),
            (self.invalid, f"{self.invalid} become NaN"),
            (self.lost, f"{self.lost} become zero (loss {self.loss:.0e})"),
        ]
        what = ", ".join(text for count, text in said if count) or f"loss {self.loss:.0e}"
        where = ", ".join(filter(None, (self.line, self.module)))
        return f"{self.op} ({self.name}{', ' if where else ''}{where}): {what}"


@dataclass(frozen=True)
class HalfPrecision:
    """What is known of a model in half precision, for the inputs it was given.

    Attributes:
        model: its name.
        calls: every call that computes with floats, in order.
        findings: the calls that overflow, become NaN or lose more than rounding does; before
            anything was mended.
        error: of the worst output; see HalfCall.
        error_before: the same before anything was mended.
        tolerance: what was asked for.
        keep_float32: modules that were computed in float32; pass them to CompilerConfig.
    """

    model: str
    calls: tuple[HalfCall, ...]
    findings: tuple[HalfCall, ...]
    error: float
    error_before: float
    tolerance: float
    keep_float32: tuple[str, ...]

    @property
    def is_harmless(self) -> bool:
        """Whether the outputs are as near to float32's as was asked for."""
        return self.error <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as what JSON can hold; what is infinite is the string "inf"."""
        fields = {**dataclasses.asdict(self), "is_harmless": self.is_harmless}
        return {key: _finite(value) for key, value in fields.items()}

    def to_json(self) -> str:
        """Returns as_dict() as a JSON object."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        lines = [f"{self.model}: in half precision, {self._off(self.error_before)}"]
        lines += [f"  {finding}" for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"  and {len(self.findings) - _SHOWN} more calls")
        if self.keep_float32:
            lines.append(f"with {', '.join(self.keep_float32)} in float32, {self._off(self.error)}")
            lines.append(f'as an option: {{"keep_float32": {json.dumps(self.keep_float32)}}}')
        elif not self.is_harmless:
            worst = max(self.calls, key=lambda call: call.error, default=None)
            if worst is not None and not self.findings:
                lines.append(f"the largest error is at {worst}")
            lines.append("npu_compiler.check_half(..., mend=True) looks for what to keep")
        elif self.findings:
            lines.append("these calls reach no output that matters: nothing need be kept")
        return "\n".join(lines)

    def _off(self, error: float) -> str:
        verdict = "within" if error <= self.tolerance else "more than"
        return f"outputs are off by {error:.1e}, {verdict} {self.tolerance:.0e}"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return "inf" if value == float("inf") else value
