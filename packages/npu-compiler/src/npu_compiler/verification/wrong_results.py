"""Tells a user that programs were wrong, and what was done about it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from npu_compiler.errors import WrongResultError, WrongResultWarning
from npu_compiler.verification.comparison import Difference
from npu_compiler.verification.verdict import Verdict

__all__ = ["WrongResults"]

_ADVICE = (
    "Please report it, with NPU_COMPILE_DEBUG set to a directory; CompilerConfig(verify=...) says "
    "when programs are compared"
)


class WrongResults:
    """What differed in one graph."""

    def __init__(
        self,
        graph: str,
        verdicts: Mapping[str, Verdict],
        *,
        difference: Difference | None,
        is_unsteady: bool,
        replaceable: frozenset[str] = frozenset(),
    ) -> None:
        """Takes what a trial found.

        Args:
            graph: its name.
            verdicts: program name -> its verdict.
            difference: how the whole graph differed although its programs are right, or None.
            is_unsteady: whether it was right when it was run again.
            replaceable: programs that can be made for OpenVINO instead.
        """
        self._replaceable = replaceable
        self._graph = graph
        self._verdicts = verdicts
        self._difference = difference
        self._is_unsteady = is_unsteady

    @property
    def wrong(self) -> tuple[str, ...]:
        """Programs that are wrong with all known workarounds."""
        return tuple(name for name, one in self._verdicts.items() if one.status == "wrong")

    def tell(self, *, is_strict: bool) -> None:
        """Warns of each.

        Raises:
            WrongResultError: [wrong-result] under strict, where calls would run eagerly.
        """
        for name, verdict in self._verdicts.items():
            if verdict.status in ("mended", "unsteady"):
                self._warn(f"{name}: its program {verdict}")
            elif verdict.status == "wrong" and name in self._replaceable:
                self._warn(
                    f"{name}: its program of kernels {verdict}. OpenVINO's takes its place from "
                    "now on"
                )
            elif verdict.status == "wrong":
                self._refuse(f"{name}: its program {verdict}", is_strict=is_strict)
        if self._difference is not None:
            text = f"{self._graph}: the compiled graph differed from torch: {self._difference}"
            if self._is_unsteady:
                self._warn(f"{text}; right when it was run again")
            else:
                self._refuse(text, is_strict=is_strict)

    def _refuse(self, text: str, *, is_strict: bool) -> None:
        if is_strict:
            raise WrongResultError(
                f"{text}. Compile without strict, so that what is wrong runs eagerly. {_ADVICE}.",
                code="wrong-result",
            )
        self._warn(f"{text}. It runs eagerly from now on")

    def _warn(self, text: str) -> None:
        warnings.warn(f"{text}. {_ADVICE}.", WrongResultWarning, stacklevel=2)
