"""Requests to Intel's NPU compiler, in the format of its version."""

import struct

import openvino as ov
import openvino.opset13 as ops

from npu_compiler.target_compiler.vcl_request import write_ir


def test_ir_begins_with_the_compilers_format(tmp_path):
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    model = ov.Model([ops.result(ops.relu(x))], [x], "model")
    digests = {write_ir(model, tmp_path / form, form) for form in ("7.26", "8.4")}
    assert len(digests) == 2
    for form in ("7.26", "8.4"):
        major, minor, parts, size = struct.unpack_from("<HHIQ", (tmp_path / form).read_bytes())
        assert f"{major}.{minor}" == form
        assert parts == 2
        assert (tmp_path / form).read_bytes()[16:].startswith(b"<?xml")
        assert size < (tmp_path / form).stat().st_size
