"""How the numbers of a model of one step become integers: groups, and calls that say by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from npu_compiler.exported.manifest import PortSpec
from npu_llm.choices import check_group_size
from npu_llm.errors import OptionError
from npu_llm.precision import Precision
from npu_llm.tasks.examples import Example
from npu_llm.tasks.inputs import bind_inputs

__all__ = ["Quantizing"]


@dataclass(frozen=True)
class Quantizing:
    """How weights, and with calls activations, become integers.

    Attributes:
        group_size: inputs of an int4 weight that share a scale: 32, 64 or 128.
        symmetric: without zero points.
        inputs: calls of the model by name: int4 weights are rounded by them (GPTQ), and with int8
            weights they say which values activations take, which are int8 too then.

    Raises:
        OptionError: [group-size].
    """

    group_size: int = 64
    symmetric: bool = False
    inputs: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        check_group_size(self.group_size)

    def check(self, precision: Precision) -> None:
        """Raises OptionError [quantize-inputs] for calls that nothing would come of."""
        if self.inputs is None:
            return
        if precision.weights not in ("int8", "int4") or not self.inputs:
            received = f"{len(self.inputs)} with {precision.name}"
            raise OptionError(
                "inputs: must be calls, at least one, by which int4 weights are rounded or int8 "
                f"activations are scaled; got {received}. Omit them, or pass some with dtype "
                '"int8" or "int4".',
                code="quantize-inputs",
            )

    def options(self, model: Any, example: Example, precision: Precision) -> dict[str, Any]:
        """Returns the arguments of npu_compiler.export.

        Args:
            model: of transformers.
            example: what it is traced with.
            precision: of the weights and the arithmetic.

        Raises:
            OptionError, ContextError: as npu_llm.tasks.inputs.bind_inputs for a call that the
                model does not take.
        """
        how: dict[str, Any] = {"dtype": precision.weights}
        if precision.weights != precision.compute:
            how["precision"] = precision.compute
        if precision.weights in ("int8", "int4"):
            how |= {"group_size": self.group_size, "symmetric": self.symmetric}
        if self.inputs is not None:
            how["calibration"] = [_whole(model, example, call) for call in self.inputs]
            if precision.weights == "int8":
                how["activations"] = "int8"
        return how


def _whole(model: Any, example: Example, call: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns a call with all inputs of the example, checked."""
    text = model.config.get_text_config()
    ports = [
        PortSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(
                f"{name}.{dim}" if dim in example.dynamic.get(name, ()) else int(size)
                for dim, size in enumerate(tensor.shape)
            ),
            None,
        )
        for name, tensor in example.inputs.items()
    ]
    values = bind_inputs(
        type(model).__name__,
        call,
        ports,
        vocabulary=getattr(text, "vocab_size", None),
        types=getattr(text, "type_vocab_size", None),
        limit=None,
    )
    return dict(zip(example.inputs, values, strict=True))
