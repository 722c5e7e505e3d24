"""Allowed outcomes of malformed calls, and findings.

A call may succeed, or raise what docs/reference/errors lists: an exception with one of its
codes, as the attribute `code` or, where it passed through PyTorch, at the end of its text. Beside
that:

- A TypeError, for arguments of a wrong number or of another kind than the signature says, is
  Python's own word and enough. It is a finding where all arguments had the right kind.
- PyTorch's own words for a call that does not fit an operator's schema are its TypeError, and its
  NotImplementedError where an operator has no kernel for a tensor's layout.
- `torch.npu.Stream` and `Event` are torch's own classes: what torch says of a device's name, too.
- PyTorch says itself that a number is too large for a tensor's dtype.
- PyTorch's allocator says itself that the machine has no memory for a tensor on the CPU.
- What a callable of the caller's raises is the caller's. So is what PyTorch says of a tensor that
  does not fit the caller's model, or a module of `npu_compiler.nn`, which is one of torch's.

All else is a finding: AttributeError, KeyError, IndexError, a vendor's RuntimeError, a signal, a
call that does not end. A command exits with 0, 1 or 2, and never prints a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from malformed.entry_points import REFERENCE

__all__ = ["Outcome", "codes", "finding_of_call", "finding_of_command"]

_CODE = re.compile(r"\[([a-z0-9]+(?:-[a-z0-9]+)+)\]\s*$")
_SCHEMA = re.compile(
    r"Expected a value of type|missing value for argument|Unknown keyword argument|"
    r"expected at most \d+ argument|is missing value|Could not cast|Unable to cast|"
    r"Tried to cast|Overflow when unpacking|positional argument\(s\) but|int too big to convert"
)
_TOO_LARGE = re.compile(r"value cannot be converted to type \w+ without overflow")
_OWN_MODEL = re.compile(r"npu_compiler\.(tune|compile|explain)$")
_UNFIT = re.compile(r"mat1 and mat2 ")


_NO_KERNEL = re.compile(
    r"Could not run 'npu::\w+' with arguments from the '(Sparse|Quantized|Mkl)|"
    r"There were no tensor arguments to this function"
)
_NO_MEMORY = re.compile(r"DefaultCPUAllocator: can't allocate memory")
_TORCHS_CLASS = re.compile(r"npu_runtime\.npu\.(streams\.)?(Stream|Event)$")
_DEVICE_NAME = re.compile(
    r"Invalid device string|at start of device string|Device index must not be negative|"
    r"Overflow when unpacking|not linked with support for|error unpacking string as utf-8"
)


# The program that a command runs has separate tracebacks, and a separate end at a closed output.
_PROGRAM = re.compile(r'File "[^"]*(script|raises|syntax)\.py"|SyntaxError: ')
RAISING_SCRIPT = "raises.py"
_EXIT_OF_RAISES = 3
_BEHIND = re.compile(r"in run\n    sys\.stdout\.flush|OSError: \[Errno 28\]")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        kind: "ok", "raised", "exit", "signal", "slow" (Ctrl-C ended it), "waited" (so it did, for
            the other end of a pipe) or "hang".
        error: classes of the exception, the most special first.
        text: of the exception, or what a command wrote to standard error.
        code: the exception's, or the exit code.
        place: where the exception arose.
        is_callers: whether a callable of the caller raised it.
    """

    kind: str
    error: tuple[str, ...] = ()
    text: str = ""
    code: str | int | None = None
    place: str = ""
    is_callers: bool = False


def codes() -> set[str]:
    """All that the reference pages list."""
    pages = [file.read_text() for file in (REFERENCE / "errors").glob("*.md")]
    return {code for page in pages for code in re.findall(r"^## `([a-z0-9-]+)`", page, re.M)}


def finding_of_call(
    subject: str, outcome: Outcome, listed: set[str], *, is_kind_wrong: bool
) -> str | None:
    """The reason why the outcome of a Python call is not allowed, or None."""
    if outcome.kind in ("ok", "skipped", "waited") or outcome.is_callers:
        return None
    if outcome.kind != "raised":
        return outcome.kind
    at_end = _CODE.search(outcome.text)
    code = outcome.code or (at_end and at_end[1])
    if code:
        return None if code in listed else f"code {code} is not listed"
    if "TypeError" in outcome.error and is_kind_wrong:
        return None
    if subject.startswith("npu_compiler.nn.") and subject.endswith(".forward"):
        return None if {"RuntimeError", "AttributeError"} & {*outcome.error} else outcome.error[0]
    if outcome.text == "I/O operation on closed file.":
        return None  # the caller's file
    if (
        {"RuntimeError", "OverflowError"} & {*outcome.error}
        and is_kind_wrong
        and _SCHEMA.search(outcome.text)
    ):
        return None
    if _NO_MEMORY.search(outcome.text) or _TOO_LARGE.search(outcome.text):
        return None
    if _OWN_MODEL.match(subject) and _UNFIT.match(outcome.text):
        return None
    if "NotImplementedError" in outcome.error and _NO_KERNEL.match(outcome.text):
        return None
    if _TORCHS_CLASS.match(subject) and not outcome.place and _DEVICE_NAME.search(outcome.text):
        return None
    return outcome.error[0]


def finding_of_command(outcome: Outcome, programs: Sequence[str] | None) -> str | None:
    """The reason why the outcome of a command is not allowed, or None.

    Args:
        outcome: of the command.
        programs: the words of a command that runs programs, its program among them; None for
            another command.
    """
    if outcome.kind != "exit":
        return outcome.kind
    if programs is not None and (_PROGRAM.search(outcome.text) or _BEHIND.search(outcome.text)):
        return None
    if programs is not None and RAISING_SCRIPT in programs and outcome.code == _EXIT_OF_RAISES:
        return None
    if "Traceback (most" in outcome.text:
        return "Traceback"
    if outcome.code not in (0, 1, 2):
        return f"exit code {outcome.code}"
    if outcome.code == 2 and not outcome.text.strip():
        return "exit code 2 without a word"
    return None
