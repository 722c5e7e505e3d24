"""Compares a program's results with torch's before the program is used, and stores the verdict.

A failing program is recompiled with workarounds for known compiler defects; if it still fails, it
is rejected. The verdict is stored next to the compiled form, so later loads skip the comparison.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import npu_runtime
from npu_compiler.errors import WrongResultError, WrongResultWarning
from npu_compiler.programs.blobs import read_amendments
from npu_compiler.verification.comparison import Difference
from npu_compiler.verification.result import Verdict
from npu_llm.choices import Verify
from npu_llm.verification.kept_verdict import keep_verdict, read_kept
from npu_runtime import Program

if TYPE_CHECKING:
    from npu_llm.verification.reference import TorchReference

__all__ = [
    "Check",
    "Finding",
    "Load",
    "Verifier",
    "wrong_result",
]

_logger = logging.getLogger(__name__)
# Loads a program with further compiler options.
Load = Callable[[Mapping[str, str]], Program]
# Runs a program; returns the first step that differs from torch.
Check = Callable[[Program, "TorchReference"], "Finding | None"]


@dataclass(frozen=True)
class Verifier:
    """Compares the programs of one model with torch.

    Attributes:
        name: the model's name, for messages.
        reference: file with torch's results.
        when: "first" for programs without a verdict, "always" for each load, "off" for never.
    """

    name: str
    reference: Path
    when: Verify

    def load(self, load: Load, check: Check, folder: Path) -> tuple[Program, Verdict]:
        """Loads a program with results that match torch's.

        Args:
            load: compiles it, or loads its compiled form.
            check: compares it with torch.
            folder: contains its compiled form in `blob`, and the verdict next to it.

        Raises:
            WrongResultError: [wrong-result] if it is wrong, even with the known workarounds.
        """
        amendments = read_amendments(folder)
        known = read_kept(folder)
        program = load(amendments)
        if known is not None and program.loaded_from_cache and self.when != "always":
            return program, known
        if self.when == "off":
            return program, Verdict("unchecked", 'verify is "off"')
        # A slow import, not needed to load from the cache.
        from npu_llm.verification.reference import read_reference

        reference = read_reference(self.reference)
        if reference is None:
            return program, Verdict("unchecked", "the model was built without torch's results")
        finding = check(program, reference)
        if finding is None:
            is_mended = known is not None and known.workaround == amendments != {}
            verdict = known if is_mended and known is not None else Verdict("right")
            keep_verdict(folder, verdict)
            return program, verdict
        if check(program, reference) is None:
            verdict = Verdict("unsteady", str(finding))
            self._warn(f"its program {verdict}")
            return program, verdict
        del program
        return self._mended(load, check, folder, finding, reference, amendments)

    def _mended(
        self,
        load: Load,
        check: Check,
        folder: Path,
        finding: Finding,
        reference: TorchReference,
        amendments: Mapping[str, str],
    ) -> tuple[Program, Verdict]:
        """Loads a wrong program with workarounds that may fix it."""
        from npu_compiler.verification.program_check import WORKAROUNDS

        tried = []
        for options in WORKAROUNDS:
            if options.items() <= amendments.items():
                continue
            tried += [f"{name}={value}" for name, value in options.items()]
            shutil.rmtree(folder / "blob", ignore_errors=True)
            try:
                program = load({**amendments, **options})
            except npu_runtime.ProgramError as failure:
                _logger.info("%s: does not compile with %s: %s", self.name, options, failure)
                continue
            if check(program, reference) is None:
                verdict = Verdict("mended", str(finding), {**amendments, **options})
                keep_verdict(folder, verdict)
                self._warn(f"its program {verdict}, and runs so")
                return program, verdict
        shutil.rmtree(folder / "blob", ignore_errors=True)
        also = f", also with {', '.join(tried)}" if tried else ""
        raise wrong_result(self.name, f"{finding}{also}")

    def _warn(self, text: str) -> None:
        advice = "Please report it with the output of npu-llm info"
        warnings.warn(f"{self.name}: {text}. {advice}.", WrongResultWarning, stacklevel=2)


def wrong_result(name: str, finding: str) -> WrongResultError:
    """Returns the error for a model whose program differs from torch: [wrong-result]."""
    return WrongResultError(
        f"`{name}` must have a program with torch's results, got another result for {finding}. "
        "The program is not used. Try another dtype or pipeline, and please report this; "
        'verify="off" runs it anyway.',
        code="wrong-result",
    )


@dataclass(frozen=True)
class Finding:
    """A step with logits that differ from torch's.

    Attributes:
        step: which step, in words.
        difference: description of the difference.
    """

    step: str
    difference: Difference

    def __str__(self) -> str:
        return f"{self.step}: {self.difference}"
