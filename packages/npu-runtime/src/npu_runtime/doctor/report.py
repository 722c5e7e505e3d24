"""Reports the doctor's results as a table, JSON, one sentence, or an exit code."""

import dataclasses
import enum
import functools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from npu_runtime.doctor.machine import Machine

__all__ = [
    "RELEASES",
    "Check",
    "Status",
    "as_json",
    "as_table",
    "exit_code",
    "needless",
    "note",
    "ok",
    "problem",
    "skipped",
    "verdict",
]

RELEASES = "https://github.com/intel/linux-npu-driver/releases"


class Status(enum.StrEnum):
    """Outcome of a check: passed, a note, a blocker, or skipped."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str  # the subject
    status: Status  # the outcome
    found: str  # the finding, as a clause
    fix: str = ""  # the fix, as a sentence; may be empty


# Results of each status, which `run_checks` names.
ok = functools.partial(Check, "", Status.OK)
note = functools.partial(Check, "", Status.NOTE)
problem = functools.partial(Check, "", Status.PROBLEM)
skipped = functools.partial(Check, "", Status.SKIPPED)


def needless(found: str) -> Check:
    """Turns missing parts into skipped checks on a machine without an NPU."""
    return skipped(f"{found}; there is no NPU to need it")


_MARKS = {Status.OK: "✓", Status.NOTE: "!", Status.PROBLEM: "✗", Status.SKIPPED: "·"}


def exit_code(machine: Machine, checks: Sequence[Check], *, require_npu: bool = False) -> int:
    """Returns 0 if nothing blocks the NPU, else 1.

    Also returns 0 on a machine without an NPU if another device is in use and `require_npu` is
    false.
    """
    if not require_npu and _serves_without_npu(machine):
        return 0
    return int(any(check.status is Status.PROBLEM for check in checks))


def _serves_without_npu(machine: Machine) -> bool:
    return not machine.chips and not machine.is_wsl and machine.serving.device not in ("", "NPU")


def verdict(machine: Machine, checks: Sequence[Check]) -> str:
    """Summarizes the results in one or two sentences."""
    problems = [check for check in checks if check.status is Status.PROBLEM]
    serving = machine.serving
    if not serving.device:
        asked = machine.requested_device
        return f"Nothing can serve as npu{f' while NPU_DEVICE={asked} is set' if asked else ''}."
    if serving.device == "NPU":
        if problems:
            return f"The NPU serves as npu, and {_count(problems)} may still matter."
        return "The NPU serves as npu."
    name = "OpenVINO's CPU plugin" if serving.device == "CPU" else f"the {serving.device}"
    chosen = "as NPU_DEVICE asks" if machine.requested_device else "the embedded default"
    instead = f"{name} serves as npu ({chosen}); everything works, at that device's speed"
    if not problems:
        return f"Nothing keeps the NPU from serving. {instead[0].upper()}{instead[1:]}."
    if _serves_without_npu(machine):
        return (
            f"This machine has no NPU, and needs none: {instead}. Try: npu-llm generate, "
            'torch.compile(model, backend="npu"), npu-profiler trace.'
        )
    first = next((check for check in problems if check.name != "npu"), problems[0])
    return f'The NPU cannot serve: see first "{first.name}". Until then {instead}.'


def as_json(machine: Machine, checks: Sequence[Check]) -> dict[str, object]:
    """Returns all results as JSON values."""
    return {
        "serving": dataclasses.asdict(machine.serving),
        "verdict": verdict(machine, checks),
        "checks": [dataclasses.asdict(check) for check in checks],
    }


def as_table(machine: Machine, checks: Sequence[Check], *, width: int = 100) -> str:
    """Formats a line per check, with its fix below it, and the summary."""
    label_width = max(len(check.name) for check in checks)
    lines: list[str] = []
    for check in checks:
        head = f"{_MARKS[check.status]} {check.name:{label_width}}  "
        lines += _wrapped(check.found, head, width)
        if check.fix:
            lines += _wrapped(check.fix, " " * len(head) + "→ ", width)
    return "\n".join([*lines, "", *_wrapped(verdict(machine, checks), "", width)])


def _wrapped(text: str, head: str, width: int) -> list[str]:
    # Commands and paths are copied from here: never break them.
    return textwrap.wrap(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(problems: Sequence[Check]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
