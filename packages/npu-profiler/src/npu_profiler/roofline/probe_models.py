"""The models of the probes, as OpenVINO's IR text: a product, a product with one row, a ReLU."""

from collections.abc import Sequence

__all__ = ["product_model", "relu_model"]


def product_model(*, rows: int, size: int, dtype: str) -> str:
    """The product of x (rows, size) and a transposed constant (size, size), all of its weights.

    Args:
        rows: of x.
        size: columns of x, and both sizes of the constant.
        dtype: of all of them, as IR spells it: "f32", "bf16", "f16".
    """
    size_bytes = size * size * (4 if dtype == "f32" else 2)
    weight = (
        '<layer id="1" name="w" type="Const" version="opset1">'
        f'<data element_type="{dtype}" shape="{size},{size}" offset="0" size="{size_bytes}"/>'
        f"<output>{_port(0, dtype, (size, size))}</output></layer>"
    )
    product = (
        '<layer id="2" name="product" type="MatMul" version="opset1">'
        '<data transpose_a="false" transpose_b="true"/>'
        f"<input>{_port(0, dtype, (rows, size))}{_port(1, dtype, (size, size))}</input>"
        f"<output>{_port(2, dtype, (rows, size))}</output></layer>"
    )
    edges = _edge(0, 0, 2, 0) + _edge(1, 0, 2, 1) + _edge(2, 2, 3, 0)
    ends = _ends((rows, size), dtype, last_id=3)
    return _net(ends[0] + weight + product + ends[1], edges)


def relu_model(*, size: int) -> str:
    """The ReLU of x (size,) in float32."""
    relu = (
        '<layer id="1" name="relu" type="ReLU" version="opset1">'
        f"<input>{_port(0, 'f32', (size,))}</input><output>{_port(1, 'f32', (size,))}</output>"
        "</layer>"
    )
    ends = _ends((size,), "f32", last_id=2)
    return _net(ends[0] + relu + ends[1], _edge(0, 0, 1, 0) + _edge(1, 1, 2, 0))


def _ends(shape: Sequence[int], dtype: str, *, last_id: int) -> tuple[str, str]:
    """The input and the output."""
    sizes = ",".join(map(str, shape))
    first = (
        '<layer id="0" name="x" type="Parameter" version="opset1">'
        f'<data shape="{sizes}" element_type="{dtype}"/>'
        f"<output>{_port(0, dtype, shape)}</output></layer>"
    )
    last = (
        f'<layer id="{last_id}" name="y" type="Result" version="opset1">'
        f"<input>{_port(0, dtype, shape)}</input></layer>"
    )
    return first, last


def _port(index: int, dtype: str, shape: Sequence[int]) -> str:
    precision = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}[dtype]
    dims = "".join(f"<dim>{size}</dim>" for size in shape)
    return f'<port id="{index}" precision="{precision}">{dims}</port>'


def _edge(source: int, source_port: int, target: int, target_port: int) -> str:
    return (
        f'<edge from-layer="{source}" from-port="{source_port}" '
        f'to-layer="{target}" to-port="{target_port}"/>'
    )


def _net(layers: str, edges: str) -> str:
    return (
        '<?xml version="1.0"?><net name="probe" version="11">'
        f"<layers>{layers}</layers><edges>{edges}</edges></net>"
    )
