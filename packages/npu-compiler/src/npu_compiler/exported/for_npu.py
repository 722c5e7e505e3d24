"""An exported program that an NPU takes whole: an exported folder has no part on the host."""

from __future__ import annotations

import json
from collections.abc import Sequence

import openvino as ov

from npu_compiler.errors import ExportError
from npu_compiler.npu_rules.finding import Finding
from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.rewriting import REWRITTEN, rewrite_for_npu
from npu_compiler.npu_rules.source_rules import GENERATIONS
from npu_compiler.npu_rules.whole_programs import check_whole_program

__all__ = ["check_program", "rewrite_program"]

# Of how many refusals an error tells.
_TOLD = 3


def rewrite_program(model: ov.Model) -> None:
    """Replaces what an NPU would refuse by equal forms, in place; the model keeps what was done."""
    done = rewrite_for_npu(model, generation=GENERATIONS[-1])
    if done:
        model.set_rt_info(json.dumps([str(one) for one in done]), list(REWRITTEN))


def check_program(model: ov.Model, *, name: str) -> None:
    """Raises where a rule of the newest generation refuses the program.

    Args:
        model: as it is to be written.
        name: of the model.

    Raises:
        ExportError: [export-npu] naming what is refused, and the rules.
    """
    findings = [*check_whole_program(model), *check_operations(model, generation=GENERATIONS[-1])]
    refused = [finding for finding in findings if finding.verdict == "refused"]
    if refused:
        raise ExportError(
            f'{name}: with target "NPU" every operation of an exported program must be one that an '
            f"NPU takes; got {_told(refused)} Change these, or export without target and see what "
            "the NPU's driver says, or use npu_compiler.compile, which runs such calls on the "
            "host.",
            code="export-npu",
        )


def _told(refused: Sequence[Finding]) -> str:
    texts = [
        f"{finding.rule}: {finding.detail}" + (f" [{finding.source}]" if finding.source else "")
        for finding in refused[:_TOLD]
    ]
    more = len(refused) - _TOLD
    return " ".join([*texts, f"And {more} more."] if more > 0 else texts)
