"""Requests to Intel's NPU compiler: an IR with its weights as one file, and the flags.

The format is that of OpenVINO's NPU plugin (src/plugins/intel_npu, VCL serializer).
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

__all__ = ["Content", "flags_of", "write_ir"]

Content = str  # a digest of an IR

_PARTS = 2  # the graph and the weights
_LAYOUTS = {0: "C", 1: "C", 2: "NC", 3: "CHW", 4: "NCHW", 5: "NCDHW"}
_TYPES = {"F32": "FP32", "F16": "FP16", "F64": "FP64", "BOOLEAN": "BOOL"}
_CHUNK = 1 << 22


def write_ir(model: ov.Model, path: Path, model_format: str) -> Content:
    """Writes a model as the compiler reads it.

    Args:
        model: stays as it is.
        path: of the file to write; its folder gets twice the model's size for a moment.
        model_format: the compiler's, such as "8.4".

    Returns:
        A digest of the file.
    """
    model = model.clone()
    model.set_rt_info(True, "is_new_api")
    model.set_rt_info(True, "use_indices_for_io_metadata")
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, path.open("wb") as file:

        def put(part: bytes) -> None:
            digest.update(part)
            file.write(part)

        graph, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(model, str(graph), str(weights))
        put(struct.pack("<HHI", *map(int, model_format.split(".")), _PARTS))
        for source in (graph, weights):
            put(struct.pack("<Q", source.stat().st_size))
            with source.open("rb") as content:
                while part := content.read(_CHUNK):
                    put(part)
    return digest.hexdigest()


def flags_of(model: ov.Model, platform: str, options: Mapping[str, str]) -> str:
    """Returns the compiler's flags: types and layouts of the ports, and its options."""
    config = {
        "NPU_PLATFORM": platform,
        "PERFORMANCE_HINT": "LATENCY",
        "LOG_LEVEL": "LOG_INFO",
        "NPU_COMPILATION_MODE_PARAMS": "enable-schedule-trace=true",
        **options,
    }
    ports = {"inputs": model.inputs, "outputs": model.outputs}
    described = [
        f'--{side}_{kind}="{" ".join(f"{i}:{show(port)}" for i, port in enumerate(found))}"'
        for side, found in ports.items()
        for kind, show in (("precisions", _type), ("layouts", _layout))
    ]
    return " ".join(
        [*described, "--config", *(f'{name}="{value}"' for name, value in config.items())]
    )


def _type(port: Any) -> str:
    name = str(port.get_element_type().get_type_name()).upper()
    return _TYPES.get(name, name)


def _layout(port: Any) -> str:
    return _LAYOUTS.get(len(port.get_partial_shape()), "NCDHW")
