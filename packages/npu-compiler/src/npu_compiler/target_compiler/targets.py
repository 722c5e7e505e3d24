"""The interface of NPU vendors' compilers, and the targets of installed ones."""

from __future__ import annotations

import abc
import difflib
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from npu_compiler.errors import OptionError, TargetError

if TYPE_CHECKING:
    import torch
    from torch import fx

    from npu_compiler.target_compiler.report import TargetReport

__all__ = [
    "GROUP",
    "GraphProgram",
    "Target",
    "TargetProgram",
    "Vendor",
    "check_release",
    "find_target",
    "find_vendor",
    "vendor_of",
    "vendors",
]

GROUP = "npu_compiler.targets"
_OWN = EntryPoint("intel", "npu_compiler.target_compiler.intel:IntelCompiler", GROUP)


@dataclass(frozen=True)
class Target:
    """One NPU generation.

    Attributes:
        name: in lower case with dashes, such as "lunar-lake".
        number: the vendor's platform number, such as "4000".
        chip: the processor's name, such as "Lunar Lake".
        tiles: of the largest model of the generation; 0 if unknown.
    """

    name: str
    number: str
    chip: str
    tiles: int = 0

    def __str__(self) -> str:
        return f"NPU {self.number} ({self.chip})"


@dataclass(frozen=True, kw_only=True)
class GraphProgram:
    """A graph to compile.

    Attributes:
        name: name for messages.
        module: aten calls and ops of npu_ops.fused, with static shapes in `meta["val"]`; returns a
            tuple of tensors.
        constants: placeholder name -> weight. The other placeholders are inputs.
        calibration: values of the inputs in example calls. If not empty, the program computes in
            int8.
    """

    name: str
    module: fx.GraphModule
    constants: Mapping[str, torch.Tensor]
    calibration: Sequence[Sequence[torch.Tensor]] = ()

    @property
    def inputs(self) -> list[fx.Node]:
        """Returns the placeholders of the inputs."""
        every = self.module.graph.find_nodes(op="placeholder")
        return [node for node in every if node.name not in self.constants]


@dataclass(frozen=True)
class TargetProgram:
    """A compiled graph: the report, and a function that computes its results here, or None."""

    report: TargetReport
    run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None


class Vendor(abc.ABC):
    """A vendor's compiler: targets, installation and compilation.

    A wheel adds one by an entry point in the group `npu_compiler.targets`: a class without
    arguments. The toolkit runs in a process that may crash or hang, which is a verdict.

    Attributes:
        name: name for `npu-compiler target install NAME`.
        targets: the platforms.
        aliases: other names -> numbers of platforms.
        takes_graphs: whether `compile` accepts graphs; otherwise OpenVINO models are compiled.
        licence: name and address of the terms to accept for an installation; "" for none.
        precision: precision of programs without calibration.
        blob_suffix: suffix of a file for the chip.
    """

    name: ClassVar[str]
    targets: ClassVar[tuple[Target, ...]]
    aliases: ClassVar[Mapping[str, str]] = {}
    takes_graphs: ClassVar[bool] = True
    licence: ClassVar[str] = ""
    precision: ClassVar[str] = "float16"
    blob_suffix: ClassVar[str] = ".blob"

    @abc.abstractmethod
    def install(
        self, release: str | None, *, wheel: Path | None, shows_progress: bool
    ) -> dict[str, Any]:
        """Installs a release, the latest by default; returns `release` and `version`.

        If it fails, raises TargetError and keeps the previous installation.
        """

    @abc.abstractmethod
    def remove(self, release: str) -> None:
        """Removes an installed release; [target-absent] if it is not installed."""

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns `sources`, `releases` and `missing`, as `npu-compiler target list` shows them."""

    def refusal(self, node: fx.Node, target: Target) -> str | None:
        """Returns the known reason why a call cannot be in a program, or None."""
        return None

    def compile(self, program: GraphProgram, target: Target) -> TargetProgram:
        """Compiles a graph; a refusal, a crash and a hang are reports.

        Raises [target-absent] or [target-compiler] without a working toolkit.
        """
        raise NotImplementedError

    def describe_blob(self, program: GraphProgram, target: Target, file: str) -> str:
        """Returns a Markdown page that explains how to run an exported blob on a board."""
        return ""


@functools.cache
def vendors() -> tuple[Vendor, ...]:
    """Returns the vendors of this wheel and others; warns if one cannot be imported."""
    made: list[Vendor] = []
    for entry in (_OWN, *sorted(entry_points(group=GROUP))):
        try:
            made.append(entry.load()())
        except Exception as failure:  # noqa: BLE001  # an error of one wheel, which others do not need
            warnings.warn(
                f"target: the entry point {entry.name} ({entry.value}) must be a Vendor, got "
                f"{type(failure).__name__}: {failure}. Repair or uninstall its wheel. "
                "[target-compiler]",
                RuntimeWarning,
                stacklevel=2,
            )
    return tuple(made)


def find_vendor(name: str) -> Vendor:
    """Returns the vendor with a name; [unknown-target] for another."""
    for vendor in vendors():
        if vendor.name == name:
            return vendor
    known = ", ".join(vendor.name for vendor in vendors())
    raise OptionError(
        f"`vendor` must be one of {known}, got {name!r}. Install the wheel that adds it.",
        code="unknown-target",
    )


def vendor_of(target: Target) -> Vendor:
    """Returns the vendor that compiles for a target."""
    return next(vendor for vendor in vendors() if target in vendor.targets)


def find_target(name: str, *, graphs: bool | None = False) -> Target:
    """Returns the target with a name or a number.

    Args:
        name: such as "lunar-lake", "Lunar Lake", "4000" or "NPU4000".
        graphs: whether its compiler must accept graphs (True) or OpenVINO models (False); None for
            either.

    Raises:
        OptionError: [unknown-target] if no target has this name; [target-form] if its compiler
            accepts the other form.
    """
    wanted = str(name).strip().lower().replace(" ", "-").replace("_", "-")
    wanted = wanted.removeprefix("npu").lstrip("-")
    every = [(vendor, target) for vendor in vendors() for target in vendor.targets]
    for vendor, target in every:
        if vendor.aliases.get(wanted, wanted) in (target.name, target.number):
            if graphs in (None, vendor.takes_graphs):
                return target
            way = (
                'Use torch.compile(options={"target": ...}), npu_compiler.check or '
                "npu_compiler.export"
                if vendor.takes_graphs
                else "Nothing here runs its programs; use npu_compiler.export(targets=...)"
            )
            raise OptionError(
                f"`target` must be one whose compiler takes "
                f"{'graphs' if graphs else 'programs of OpenVINO'} here, got {name!r}. {way}.",
                code="target-form",
            )
    known = [target.name for _, target in every]
    near = difflib.get_close_matches(wanted, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(
        target.name if target.name == target.number else f"{target.name} ({target.number})"
        for _, target in every
    )
    raise OptionError(
        f"`target` must be one of {listed}, got {name!r}.{hint} `npu-compiler target list` shows "
        "them.",
        code="unknown-target",
    )


def check_release(release: str, releases: Iterable[str]) -> None:
    """Raises TargetError [target-release] for a release of a toolkit that is not listed."""
    known = list(releases)
    if release not in known:
        near = difflib.get_close_matches(release, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise TargetError(
            f"`release` must be one of {', '.join(known)}, got {release!r}.{hint} Choose one of "
            "these.",
            code="target-release",
        )
