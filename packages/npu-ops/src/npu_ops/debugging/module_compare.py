"""`ModuleCompare`: compares the outputs and gradients of two runs, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.comparator import compare, cosine_similarity
from npu_ops.debugging.report import Report
from npu_ops.error_metrics import Comparison
from npu_ops.errors import OperatorInputError, VerificationError
from npu_ops.seal import damaged, digest
from npu_runtime.errors import FileAccessError
from npu_runtime.public_calls import public_call

__all__ = ["LayerDifference", "ModuleCompare", "ModuleRun"]

_ROOT = "(the module itself)"
_CHECKSUM = "checksum"


@dataclass
class ModuleRun:
    """Results of a module's layers in one iteration, on the CPU, in order of completion.

    Attributes:
        activations: (layer, call of the layer, index of the result) -> value.
        gradients: the same keys -> gradient of that result, in order of arrival.
        parameters: name -> gradient at the end of the iteration.
    """

    activations: dict[tuple[str, int, int], torch.Tensor] = field(default_factory=dict)
    gradients: dict[tuple[str, int, int], torch.Tensor] = field(default_factory=dict)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    @contextmanager
    @public_call
    def of(cls, module: torch.nn.Module) -> Iterator[ModuleRun]:
        """Records one iteration: the forward and, if there is one, the backward in the block."""
        run = cls()
        calls: dict[str, int] = {}
        with ExitStack() as hooks:
            for name, layer in module.named_modules():
                keep = partial(run._keep, name or _ROOT, calls)
                handle = layer.register_forward_hook(keep)
                hooks.callback(handle.remove)
            yield run
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                run.parameters[name] = parameter.grad.detach().cpu().clone()

    @public_call
    def save(self, file: str | Path) -> None:
        """Writes the run, for a comparison on another machine.

        Raises:
            FileAccessError: [file-access] for a file that cannot be written.
        """
        tensors: dict[str, torch.Tensor] = {}
        for kind in ("activations", "gradients"):
            for place, (key, value) in enumerate(getattr(self, kind).items()):
                tensors[json.dumps([kind, place, *key])] = value.contiguous()
        for place, (name, value) in enumerate(self.parameters.items()):
            tensors[json.dumps(["parameters", place, name])] = value.contiguous()
        metadata = {_CHECKSUM: _checksum(tensors)}
        try:
            safetensors.torch.save_file(tensors, str(file), metadata)
        except safetensors.SafetensorError as error:
            raise FileAccessError(
                f"ModuleRun.save: {file} must be writable, got: {error}. Name another file.",
                code="file-access",
            ) from error

    @classmethod
    @public_call
    def load(cls, file: str | Path) -> ModuleRun:
        """Reads a run.

        Raises:
            OperatorInputError: [module-run] for a file without a run.
            DamagedFileError: [file-damaged] for a file that changed since.
        """
        run = cls()
        try:
            if not Path(file).is_file():  # safetensors blocks on a pipe
                raise OSError("the file does not exist")
            with safetensors.safe_open(str(file), "pt") as opened:
                kept = (opened.metadata() or {}).get(_CHECKSUM)
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            if kept is not None and kept != _checksum(tensors):
                raise damaged(Path(file), "its tensors differ from those written")
            keys = sorted((json.loads(name) for name in tensors), key=lambda key: key[:2])
            for kind, place, *key in keys:
                value = tensors[json.dumps([kind, place, *key])]
                getattr(run, kind)[key[0] if kind == "parameters" else tuple(key)] = value
        except (OSError, ValueError, AttributeError, safetensors.SafetensorError) as error:
            raise OperatorInputError(
                f"`{file}` must be a run that ModuleRun.save wrote; {error}. Record it again.",
                code="module-run",
            ) from error
        return run

    def _keep(
        self,
        name: str,
        calls: dict[str, int],
        layer: torch.nn.Module,
        arguments: Any,
        results: Any,
    ) -> None:
        number = calls.get(name, 0)
        calls[name] = number + 1
        leaves = [leaf for leaf in tree_leaves(_plain(results)) if isinstance(leaf, torch.Tensor)]
        for place, leaf in enumerate(leaves):
            key = (name, number, place)
            self.activations[key] = leaf.detach().cpu().clone()
            if leaf.requires_grad:
                hook = partial(self._keep_gradient, key)
                leaf.register_hook(hook)  # type: ignore[no-untyped-call]

    def _keep_gradient(self, key: tuple[str, int, int], gradient: torch.Tensor) -> None:
        self.gradients[key] = gradient.detach().cpu().clone()


@dataclass(frozen=True)
class LayerDifference:
    """One layer's result, or its gradient, in both runs.

    Attributes:
        kind: `activation`, `gradient` (of a layer's result) or `parameter` (its gradient).
        layer: the layer's name in the module; for a parameter, the parameter's name.
        call: index of the layer's call, from 0.
        place: index of the result, from 0.
        seen: the values' comparison.
        cosine: cosine similarity; None if undefined.
    """

    kind: str
    layer: str
    call: int
    place: int
    seen: Comparison
    cosine: float | None


class ModuleCompare:
    """Compares two runs of a module, in the order in which the layers ran.

    In the forward pass, the first difference is in the first layer that diverges. Gradients are in
    order of the backward pass: if the gradient of a layer's result is the first to differ, the
    backward of the next layer is at fault.

    Attributes:
        layers: one entry for each result of each call of each layer, activations first, then
            gradients, then those of the parameters.
    """

    @public_call
    def __init__(
        self,
        run: ModuleRun,
        reference: ModuleRun,
        *,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        """Compares the runs.

        Args:
            run: the run to check.
            reference: the expected run, such as the CPU's, possibly in higher precision.
            rtol: relative tolerance; by default that of torch.testing for the run's dtypes.
            atol: absolute tolerance; by default 10 times torch.testing's, plus that share of the
                largest value: errors accumulate over layers.

        Raises:
            OperatorInputError: [module-run] if the runs are of different modules.
        """
        self._tolerances = (rtol, atol)
        self.layers: tuple[LayerDifference, ...] = (
            *self._pairs("activation", run.activations, reference.activations),
            *self._pairs("gradient", run.gradients, reference.gradients),
            *self._pairs(
                "parameter",
                {(name, 0, 0): value for name, value in run.parameters.items()},
                {(name, 0, 0): value for name, value in reference.parameters.items()},
            ),
        )

    @property
    def first_difference(self) -> LayerDifference | None:
        """The first layer that differs; None if all agree."""
        return next((layer for layer in self.layers if not layer.seen.passed), None)

    @property
    def passed(self) -> bool:
        """Whether all layers agree."""
        return self.first_difference is None

    def raise_if_failed(self) -> None:
        """Raises if a layer differs.

        Raises:
            VerificationError: [module-differs], naming the first layer.
        """
        if not self.passed:
            raise VerificationError(
                f"ModuleCompare: {self.report().summary}", code="module-differs"
            )

    def report(self) -> Report:
        """Returns one row for each layer and gradient, with differences marked."""
        rows = tuple(
            (
                one.kind,
                one.layer,
                one.call,
                one.place,
                "close" if one.seen.passed else "differs",
                one.seen.max_absolute_error,
                one.seen.max_relative_error,
                one.cosine,
                one.seen.problem or "",
            )
            for one in self.layers
        )
        bad = frozenset(n for n, one in enumerate(self.layers) if not one.seen.passed)
        first = self.first_difference
        summary = f"{len(rows):,} tensors of layers compared, {len(bad):,} differ"
        if first is not None:
            summary += f"; the first is the {first.kind} of {first.layer}"
        columns = ("kind", "layer", "call", "result", "verdict")
        errors = ("max abs error", "max rel error", "cosine", "problem")
        return Report("Layers of two runs", columns + errors, rows, f"{summary}.", bad, not bad)

    def _pairs(
        self,
        kind: str,
        run: Mapping[tuple[str, int, int], torch.Tensor],
        reference: Mapping[tuple[str, int, int], torch.Tensor],
    ) -> Iterator[LayerDifference]:
        if run.keys() != reference.keys():
            odd = sorted(run.keys() ^ reference.keys())[0]
            raise OperatorInputError(
                f"ModuleCompare: both runs must be of the same module, got the {kind} of {odd[0]} "
                f"in only one of them. Record the same module with arguments of the same "
                f"structure.",
                code="module-run",
            )
        for key, got in run.items():
            expected = reference[key]
            rtol, atol = self._tolerance(got, expected)
            seen = compare(got, expected, rtol, atol)
            yield LayerDifference(kind, *key, seen, cosine_similarity(got, expected))

    def _tolerance(self, got: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
        rtol, atol = default_tolerances(got.dtype, expected.dtype)
        if expected.is_floating_point() and expected.numel():
            atol *= 10 * max(1.0, float(expected.abs().nan_to_num(0, 0, 0).max()))
        own = self._tolerances
        return (rtol if own[0] is None else own[0], atol if own[1] is None else own[1])


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns a checksum of names, dtypes, shapes and bytes."""
    parts = [
        f"{name} {tensor.dtype} {list(tensor.shape)} {digest(_bytes(tensor))}"
        for name, tensor in sorted(tensors.items())
    ]
    return digest("\n".join(parts).encode())


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _plain(results: Any) -> Any:
    """Returns a layer's results as a pytree: transformers uses its own dictionary classes."""
    return dict(results) if isinstance(results, Mapping) else results
