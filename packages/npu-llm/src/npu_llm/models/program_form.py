"""Forms of the static pipeline's programs: the best one for each NPU generation.

Chosen by the estimates of Intel's compiler (OpenVINO 2026.4.1, 2026-11), which
`benchmarks/program_forms.py` prints; not measured on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_runtime.info import npu_architecture

__all__ = ["ProgramForm", "form_here", "form_of"]

_TILES, _DYNAMIC = "NPU_TILES", "NPU_COMPILER_DYNAMIC_QUANTIZATION"


@dataclass(frozen=True)
class ProgramForm:
    """The form and compiler options of static programs.

    Attributes:
        target: number of the NPU generation, such as "4000"; "" for a device that is not an NPU.
        scales_weights: whether scales are applied to integer weights, for compilers with dynamic
            quantization; otherwise to the product.
    """

    target: str = ""
    scales_weights: bool = False

    def options(self, tokens: int) -> dict[str, str]:
        """Returns the compiler's options for a program.

        Args:
            tokens: tokens of a step.
        """
        if not self.target:
            return {}
        # Weights reach each tile by separate transfers, which bound a step of one token.
        options = {_TILES: "2"} if tokens == 1 and self.target != "3720" else {}
        if self.scales_weights:
            options[_DYNAMIC] = "YES"
        return options


def form_of(target: str) -> ProgramForm:
    """Returns the form of programs for an NPU.

    Args:
        target: its name or number, such as "lunar-lake".

    Raises:
        npu_compiler.errors.OptionError: [unknown-target].
    """
    # Imported late: loading needs no OpenVINO Python package.
    from npu_compiler.target_compiler.targets import find_target

    return _form(find_target(target).number)


def form_here() -> ProgramForm:
    """Returns the form of programs for the device in use."""
    return _form(npu_architecture().removeprefix("NPU"))


def _form(number: str) -> ProgramForm:
    return ProgramForm(number, scales_weights=number >= "5000")
