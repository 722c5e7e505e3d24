"""Programs for the checks; those of the drivers openvino and sim are OpenVINO IR version 11."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["ProgramSet", "ProgramText", "openvino_programs"]


@dataclass(frozen=True)
class ProgramText:
    """One program as ``program_load`` takes it.

    Attributes:
        model: the text, in the driver's format.
        weights: its weights as bytes; empty if the format needs none.
        options: the load options.
    """

    model: bytes
    weights: bytes = b""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgramSet:
    """The programs of one driver. All ports are float32 and dense.

    A driver may omit optional programs; their checks are then reported as unsupported.

    Attributes:
        add_one: x: (64,) -> x + 1.
        two_ports: x: (2, 3), y: (2, 3) -> x + 1 and 2 * y, in this order.
        dynamic_sum: x: (n,), y: (n,) -> x + y for any n from 0; different lengths cannot be added.
        counter: x: (2,) -> the sum of every x that this request was given.
        layer_options: with these options, in place of its own, ``add_one`` records its layers.
        model_suffix: the file suffix of a program, for example ``".xml"``.
        weights_suffix: the file suffix of its weights.
    """

    add_one: ProgramText
    two_ports: ProgramText
    dynamic_sum: ProgramText | None = None
    counter: ProgramText | None = None
    layer_options: Mapping[str, str] | None = None
    model_suffix: str = ".txt"
    weights_suffix: str = ".bin"


_OPTIONS = {"INFERENCE_PRECISION_HINT": "f32"}


class _Model:
    """Writes the IR of a small model: layers get their numbers in the order of the calls."""

    def __init__(self) -> None:
        self._layers: list[str] = []
        self._edges: list[str] = []
        self._ports: list[tuple[int, int, Sequence[int]]] = []  # layer, port, dims of each value
        self._weights = b""

    def layer(
        self,
        kind: str,
        inputs: Sequence[int],
        dims: Sequence[int] | None,
        *,
        data: str = "",
        opset: int = 1,
    ) -> int:
        """Adds a layer that takes these values; gives the number of the value it makes."""
        number = len(self._layers)
        taken = "".join(
            f'<port id="{port}">{_dims(self._ports[value][2])}</port>'
            for port, value in enumerate(inputs)
        )
        made = len(inputs)
        given = "" if dims is None else f'<port id="{made}" precision="FP32">{_dims(dims)}</port>'
        self._layers.append(
            f'<layer id="{number}" name="{kind.lower()}{number}" type="{kind}" '
            f'version="opset{opset}"><data {data}/>'
            + (f"<input>{taken}</input>" if taken else "")
            + (f"<output>{given}</output>" if given else "")
            + "</layer>"
        )
        for port, value in enumerate(inputs):
            from_layer, from_port, _ = self._ports[value]
            self._edges.append(
                f'<edge from-layer="{from_layer}" from-port="{from_port}" '
                f'to-layer="{number}" to-port="{port}"/>'
            )
        self._ports.append((number, made, dims or ()))
        return number

    def parameter(self, dims: Sequence[int]) -> int:
        """Adds an input."""
        shape = ",".join("?" if dim < 0 else str(dim) for dim in dims)
        return self.layer("Parameter", (), dims, data=f'shape="{shape}" element_type="f32" ')

    def constant(self, values: Sequence[float]) -> int:
        """Adds a vector of constants, kept in the weights."""
        packed = struct.pack(f"<{len(values)}f", *values)
        data = (
            f'element_type="f32" shape="{len(values)}" offset="{len(self._weights)}" '
            f'size="{len(packed)}" '
        )
        self._weights += packed
        return self.layer("Const", (), (len(values),), data=data)

    def binary(self, kind: str, left: int, right: int) -> int:
        """Adds an element-wise layer; its result has the left side's shape."""
        dims = self._ports[left][2]
        return self.layer(kind, (left, right), dims, data='auto_broadcast="numpy" ')

    def result(self, value: int) -> None:
        """Makes a value an output."""
        self.layer("Result", (value,), None)

    def text(self, name: str) -> ProgramText:
        """The finished program."""
        xml = (
            f'<?xml version="1.0"?><net name="{name}" version="11">'
            f"<layers>{''.join(self._layers)}</layers><edges>{''.join(self._edges)}</edges></net>"
        )
        return ProgramText(xml.encode(), self._weights, _OPTIONS)


def _dims(dims: Sequence[int]) -> str:
    return "".join(f"<dim>{dim}</dim>" for dim in dims)


def openvino_programs() -> ProgramSet:
    """The program set."""
    return ProgramSet(
        add_one=_add_one(),
        two_ports=_two_ports(),
        dynamic_sum=_dynamic_sum(),
        counter=_counter(),
        layer_options={**_OPTIONS, "PERF_COUNT": "YES"},
        model_suffix=".xml",
        weights_suffix=".bin",
    )


def _add_one() -> ProgramText:
    model = _Model()
    model.result(model.binary("Add", model.parameter((64,)), model.constant([1.0])))
    return model.text("add_one")


def _two_ports() -> ProgramText:
    model = _Model()
    x, y = model.parameter((2, 3)), model.parameter((2, 3))
    model.result(model.binary("Add", x, model.constant([1.0])))
    model.result(model.binary("Multiply", y, model.constant([2.0])))
    return model.text("two_ports")


def _dynamic_sum() -> ProgramText:
    model = _Model()
    model.result(model.binary("Add", model.parameter((-1,)), model.parameter((-1,))))
    return model.text("dynamic_sum")


def _counter() -> ProgramText:
    model = _Model()
    x, start = model.parameter((2,)), model.constant([0.0, 0.0])
    variable = 'variable_id="sum" variable_type="f32" variable_shape="2" '
    before = model.layer("ReadValue", (start,), (2,), data=variable, opset=6)
    total = model.binary("Add", x, before)
    model.layer("Assign", (total,), (2,), data='variable_id="sum" ', opset=6)
    model.result(total)
    return model.text("counter")
