"""Ops that the fuzzer leaves out, and ops of which it compares less, each with its reason."""

from __future__ import annotations

from npu_ops.op_conformance.fuzz.call import Call, Mark

__all__ = ["EXCLUDED", "INCOMPARABLE", "is_comparable", "is_excluded", "is_undefined"]

# Op, or the beginning of its name -> why it is not called.
EXCLUDED: dict[str, str] = {
    "aten::quantized_gru": "takes an object of torch.classes that no call can write down",
    "aten::quantized_lstm": "takes an object of torch.classes that no call can write down",
    "aten::_make_dep_token": "gives memory that nothing has written",
    "aten::_test_": "torch's own tests' op, whose results are on the CPU by design",
    "aten::fbgemm_": "its packed weights are the address of an object, on the CPU by design",
}

# Beginning of an op's name -> why its end on the CPU says nothing. No signal may come all the same.
INCOMPARABLE: dict[str, str] = {
    "aten::_thnn_fused_": "for devices only: the CPU has no such kernel, npu does",
    "aten::_copy_from": "for devices only: the CPU has no such kernel, npu does",
    "aten::convolution_overrideable": "for devices only: the CPU has no such kernel, npu does",
    "aten::convolution_backward_overrideable": "for devices only, as above",
    "aten::quantile": "torch looks at the values of q on the CPU alone",
    "aten::nanquantile": "torch looks at the values of q on the CPU alone",
    "aten::randint_like.Tensor": "torch takes `high` on the CPU alone, for every device",
    "aten::tensor_split.tensor": "torch takes the indices on the CPU alone, for every device",
    "aten::scalar_tensor": "torch leaves out the layout where the device is the CPU",
    "aten::get_device": "tells the device",
    "aten::_shape_as_tensor": "gives a tensor on the CPU by design",
    "aten::mean.dtype_out": "torch gives another tensor than `out` where the input is quantized",
    "aten::max_pool1d": "torch has a kernel for the CPU alone, of fewer dtypes than its other way",
    "aten::histc": "npu counts integers too, as CUDA does",
    "aten::native_dropout": "npu draws a mask where the CPU checks the probability first",
    "aten::_nested_tensor_from": "npu takes what the CPU has no kernel for",
    "aten::to_mkldnn": "for the CPU alone",
    "aten::_autocast_to_reduced_precision": "looks whether the tensor is on the CPU or on CUDA",
    "aten::choose_qparams_optimized": "gives its two numbers on the CPU by design",
    "aten::_to_cpu": "gives a tensor on the CPU by design",
    "aten::block_diag.out": "without a tensor torch makes the result on the CPU",
    "aten::_compute_linear_combination": "torch reads beyond the coefficients when they are fewer",
}

# Beginning of an op's name -> how many numbers of padding torch's kernel reads, however many there
# are: what stands behind them tells the class of the error, and is quoted in its message.
_SIDES = {"aten::reflection_pad1d_backward": 2, "aten::reflection_pad2d_backward": 4}

# Parts of names of ops whose result shows memory that nothing has written.
_UNDEFINED = ("empty", "resize", "aten::set")
# torch's kernels of these polynomials give a variable that nothing has set where x is NaN.
_POLYNOMIAL = "_polynomial_"
_NOT_A_NUMBER = ("NaN", '"special"')
# A factory asked for one of these leaves its indices unwritten.
_COMPRESSED = ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def is_excluded(op: str) -> bool:
    """Whether an op is not called."""
    return op.startswith(tuple(EXCLUDED))


def is_comparable(call: Call) -> bool:
    """Whether the CPU's end says what npu's must be."""
    return not (
        call.is_mixed or call.op.startswith(tuple(INCOMPARABLE)) or _has_short_padding(call)
    )


def _has_short_padding(call: Call) -> bool:
    padding = call.arguments[2] if len(call.arguments) > 2 else None
    return isinstance(padding, list) and any(
        call.op.startswith(op) and len(padding) < sides for op, sides in _SIDES.items()
    )


def is_undefined(call: Call) -> bool:
    """Whether a result's values are whatever the memory held."""
    layout = call.keywords.get("layout")
    if _POLYNOMIAL in call.op:
        return any(word in call.to_json() for word in _NOT_A_NUMBER)
    return any(part in call.op for part in _UNDEFINED) or (
        isinstance(layout, Mark) and layout.value in _COMPRESSED
    )
