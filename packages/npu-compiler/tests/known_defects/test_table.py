"""Each known defect: that it exists, its workaround, and the models that it is reported for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.known_defects.entry import KnownDefect, measure, version_number
from npu_compiler.known_defects.table import KNOWN_DEFECTS, avoid_defects
from npu_compiler.openvino_core import openvino_core

# Far above rounding, far below the error of each defect.
WRONG = 1e-2

# Whether this processor has a defect, where not all do.
_IS_HERE = {
    "attention-of-varying-sizes": not torch.cpu._is_avx512_supported(),
    "comparison-with-nan": torch.cpu._is_avx512_supported(),
    # Half precision is that of the instructions; no processor without them was asked.
    "attention-of-one-query": torch.cpu._is_avx512_bf16_supported(),
    "constant-beyond-float16": "FP16"
    in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
}

every = pytest.mark.parametrize("defect", KNOWN_DEFECTS, ids=lambda defect: defect.name)


@every
def test_the_installed_openvino_still_has_the_defect(defect: KnownDefect) -> None:
    release = version_number(ov.__version__)
    assert release >= defect.first
    error = measure(defect) if not defect.ends_process else _error_in_another_process(defect)
    if not _IS_HERE.get(defect.name, True):
        return  # the replacement is right on every processor
    assert error > WRONG, (
        f"OpenVINO {ov.__version__} computes {defect.name} right (error {error}): "
        "give the entry a last release, and have avoid_defects leave later ones alone."
    )


@every
def test_a_workaround_gives_the_right_result(defect: KnownDefect) -> None:
    if defect.options:
        assert measure(defect, options=defect.options) < WRONG / 100
    if defect.avoid is not None:
        assert measure(defect, is_avoided=True) < WRONG / 100
    assert defect.options or defect.avoid


@every
def test_entries_say_when_and_carry_a_report(defect: KnownDefect) -> None:
    assert defect.summary.endswith(".")
    assert defect.condition
    assert len(defect.report) > 20
    assert defect.first <= defect.last


@pytest.mark.parametrize("device, is_rewritten", [("CPU", 1), ("SIM2", 1), ("NPU", 0)])
def test_models_are_rewritten_for_the_devices_that_have_a_defect(
    device: str, is_rewritten: int
) -> None:
    model = _attention(heads=4, tokens=4)
    avoid_defects(model, device=device)
    assert _count(model, "Unsqueeze") == is_rewritten


def test_releases_before_the_first_are_left_alone() -> None:
    model = _attention(heads=4, tokens=4)
    avoid_defects(model, device="CPU", release="2025.1.0")
    assert _count(model, "Unsqueeze") == 0


@pytest.mark.parametrize(
    "heads, tokens, swaps, is_rewritten",
    [
        (4, 4, "result", 1),
        (4, 4, "query", 1),
        (4, 4, "both", 2),
        (4, 4, "none", 0),
        (4, 5, "result", 0),
        (4, 5, "query", 0),
        (4, 5, "both", 0),
    ],
)
def test_only_attention_with_a_transpose_and_equal_shapes_is_rewritten(
    heads: int, tokens: int, swaps: str, is_rewritten: int
) -> None:
    model = _attention(heads=heads, tokens=tokens, swaps=swaps)
    avoid_defects(model, device="CPU")
    assert _count(model, "Unsqueeze") == is_rewritten


@pytest.mark.parametrize(
    "swaps, between",
    [
        ("query", "scale"),
        ("both", "scale"),
        ("result", "select"),
        ("result", "products of rank 3"),
        ("query", "products of rank 3"),
    ],
)
def test_a_transpose_behind_other_operations_is_rewritten_and_the_result_is_right(
    swaps: str, between: str
) -> None:
    model = _attention(heads=4, tokens=4, swaps=swaps, between=between)
    given = np.random.default_rng(0).standard_normal((3, 1, 4, 4, 8)).astype(np.float32)
    plain = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}
    expected = ov.compile_model(model, "CPU", plain)(list(given))[0]
    avoid_defects(model, device="CPU")
    assert _count(model, "Unsqueeze") == (2 if swaps == "both" else 1)
    result = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(list(given))[0]
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_the_operation_for_attention_is_rewritten_as_its_parts_are() -> None:
    parts = [ops.parameter([1, 4, 4, 8], np.float32) for _ in range(3)]
    mixed = ops.scaled_dot_product_attention(*parts)
    model = ov.Model([ops.transpose(mixed, ops.constant(np.array([0, 2, 1, 3])))], parts)
    avoid_defects(model, device="CPU")
    assert _count(model, "Unsqueeze") == 1


def test_a_rewritten_model_keeps_names_and_shapes() -> None:
    model = _attention(heads=4, tokens=4)
    model.outputs[0].get_tensor().set_names({"answer"})
    avoid_defects(model, device="CPU")
    assert model.output("answer").get_partial_shape() == ov.PartialShape([1, 4, 4, 8])


@pytest.mark.parametrize("kind", ["greater", "greater_equal"])
@pytest.mark.parametrize("dtype, is_exchanged", [(np.float32, 1), (np.float16, 1), (np.int32, 0)])
def test_comparisons_that_nan_takes_part_in_are_exchanged(
    kind: str, dtype: type, is_exchanged: int
) -> None:
    left, right = (ops.parameter(shape, dtype) for shape in ([3, 1], [4]))
    model = ov.Model([getattr(ops, kind)(left, right)], [left, right])
    model.outputs[0].get_tensor().set_names({"answer"})
    avoid_defects(model, device="CPU")
    assert _count(model, "Less") + _count(model, "LessEqual") == is_exchanged
    assert model.output("answer").get_partial_shape() == ov.PartialShape([3, 4])


@pytest.mark.parametrize(
    "form",
    ["float32", "equal constants", "float16", "bfloat16", "scaled", "viewed", "batch of one"],
)
def test_a_matrix_and_its_transpose_are_packed_apart(form: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    matrix = generator.integers(-8, 8, (64, 64)).astype(np.float32)
    weights = [ops.constant(matrix) for _ in range(2)]
    if form == "float16":
        weights = [ops.convert(ops.constant(matrix.astype(np.float16)), "f32")] * 2
    elif form == "bfloat16":
        weights = [ops.convert(ops.constant(matrix, ov.Type.bf16), "f32")] * 2
    elif form == "scaled":
        whole = ops.convert(ops.constant(matrix.astype(np.int8)), "f32")
        weights = [ops.multiply(whole, ops.constant(np.float32(0.5)))] * 2
        matrix = matrix * 0.5
    elif form == "batch of one":
        one = ops.unsqueeze(weights[0], ops.constant(np.array([2])))
        shape = ops.constant(np.array([1, 64, 64]))
        weights = [ops.reshape(one, shape, False), weights[0]]
    elif form != "equal constants":
        weights = [weights[0]] * 2
    matrices = [matrix, matrix]
    if form == "viewed":
        matrices = [matrix.reshape(32, 128), matrix.reshape(128, 32)]
        weights = [
            ops.reshape(weight, ops.constant(np.array(view.shape)), False)
            for weight, view in zip(weights, matrices, strict=True)
        ]
    given = [ops.parameter([3, view.shape[side]], np.float32) for side, view in enumerate(matrices)]
    products = [
        ops.matmul(given[0], weights[0], False, False),
        ops.matmul(given[1], weights[1], False, True),
    ]
    model = ov.Model(products, given)
    avoid_defects(model, device="CPU")
    ov.serialize(model, tmp_path / "model.xml")
    inputs = [generator.standard_normal(port.shape).astype(np.float32) for port in given]
    options = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    results = ov.compile_model(tmp_path / "model.xml", "CPU", options)(inputs)
    found = results[0].reshape(3, -1)
    np.testing.assert_allclose(found, inputs[0] @ matrices[0], atol=1e-3)
    np.testing.assert_allclose(results[1], inputs[1] @ matrices[1].T, atol=1e-3)


@pytest.mark.parametrize("form", ["one operation", "its parts"])
@pytest.mark.parametrize(
    "query, mask, is_rewritten",
    [
        ([2, 4, 1, 16], [1, 9], 1),
        ([2, 4, 1, 16], [1, 1, 9], 1),
        ([2, 1, 1, 16], [1, 1, 1, 9], 1),
        ([1, 1, 1, 16], [1, 1, 1, 9], 0),
        ([2, 4, 1, 16], [2, 1, 1, 9], 0),
        ([2, 4, 1, 16], [4, 1, 9], 0),
        ([2, 4, 3, 16], [1, 1, 3, 9], 0),
    ],
)
def test_a_mask_that_heads_share_is_tiled_for_one_query(
    form: str, query: list[int], mask: list[int], is_rewritten: int
) -> None:
    shapes = [query, [*query[:2], 9, 16], [*query[:2], 9, 16], mask]
    parts = [ops.parameter(shape, np.float32) for shape in shapes]
    if form == "one operation":
        mixed = ops.scaled_dot_product_attention(*parts, causal=False)
    else:
        scores = ops.add(ops.matmul(parts[0], parts[1], False, True), parts[3])
        mixed = ops.matmul(ops.softmax(scores, -1), parts[2], False, False)
    model = ov.Model([mixed.output(0)], parts)
    generator = np.random.default_rng(0)
    given = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    plain = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}
    expected = ov.compile_model(model, "CPU", plain)(given)[0]
    avoid_defects(model, device="CPU")
    avoid_defects(model, device="CPU")
    assert _count(model, "Tile") == is_rewritten
    result = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})(given)[0]
    np.testing.assert_allclose(result, expected, atol=0.1)


@pytest.mark.parametrize("shape", [[-1, 3], [4, 3]])
def test_the_absolute_value_of_what_a_shape_gives_is_right(shape: list[int]) -> None:
    given = ops.parameter(ov.PartialShape(shape), np.float32)
    below = ops.subtract(ops.shape_of(given), ops.constant(np.array(10)))
    model = ov.Model([ops.abs(below)], [given])
    avoid_defects(model, device="CPU")
    result = ov.compile_model(model, "CPU")([np.ones((4, 3), np.float32)])[0]
    np.testing.assert_array_equal(result, [6, 7])


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_computed", [False, True])
def test_a_constant_of_one_element_gives_its_rank_to_the_result(
    is_first: bool, is_computed: bool
) -> None:
    given = ops.parameter(ov.PartialShape([-1, 3]), np.float32)
    turned = ops.transpose(given, ops.constant(np.array([1, 0])))
    known = ops.constant(np.full((1, 1, 1), 2, np.float32))
    if is_computed:
        known = ops.negative(ops.negative(known))
    sides = (known, turned) if is_first else (turned, known)
    model = ov.Model([ops.negative(ops.add(*sides))], [given])
    avoid_defects(model, device="CPU")
    avoid_defects(model, device="CPU")
    assert _count(model, "Unsqueeze") == 1
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([values])[0]
    np.testing.assert_array_equal(result, -(values.T + 2)[None])


@pytest.mark.parametrize("shapes", [([4], [1, 4]), ([1, 4], [1, 1]), ([4], []), ([4], [1])])
def test_other_operands_of_arithmetic_are_left_alone(shapes: tuple[list[int], ...]) -> None:
    given = [ops.parameter(shape, np.float32) for shape in shapes]
    model = ov.Model([ops.multiply(*given)], given)
    avoid_defects(model, device="CPU")
    assert _count(model, "Unsqueeze") == 0


@pytest.mark.parametrize(
    "shape, repeats, is_rewritten",
    [
        ([1, 1, -1, 4], [2, 2, 1, 2], 1),
        ([2, 1, -1, 4], [2, 2], 1),
        ([1, 1, -1, 4], [2, 1, 2, 2, 1], 1),
        ([-1, 1, 1, 2, 4], [1, 1, 1, 2, 2], 1),
        ([1, 1, -1, 4], [2, 2, 1, 1], 0),
        ([1, -1, 1, 4], [1, 2, 1, 2], 0),
        ([1, 1, 3, 4], [1, 2, 1, 2], 0),
    ],
)
def test_a_dynamic_tensor_of_one_channel_is_repeated_in_rank_6(
    shape: list[int], repeats: list[int], is_rewritten: int
) -> None:
    given = ops.parameter(ov.PartialShape(shape), np.float32)
    model = ov.Model([ops.tile(given, ops.constant(np.array(repeats)))], [given])
    avoid_defects(model, device="CPU")
    avoid_defects(model, device="CPU")
    assert _count(model, "Unsqueeze") == is_rewritten
    sizes = [3 if size == -1 else size for size in shape]
    values = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    result = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([values])[0]
    np.testing.assert_array_equal(result, np.tile(values, repeats))


@pytest.mark.parametrize(
    "kernel, strides, pads, is_rewritten",
    [
        ([1], [2], [1], 1),
        ([1, 1], [3, 1], [0, 2], 1),
        ([1, 1], [2, 3], [1, 1], 1),
        ([1, 1], [2, 2], [0, 0], 0),
        ([1, 1], [1, 1], [1, 1], 0),
        ([1, 3], [2, 2], [1, 1], 0),
    ],
)
def test_a_stride_of_one_pixel_skips_after_padding(
    kernel: list[int], strides: list[int], pads: list[int], is_rewritten: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    image, weight = (
        torch.randn(2, 3, *sizes, generator=generator) for sizes in ([5] * len(kernel), kernel)
    )
    given = ops.parameter(ov.PartialShape([-1, *image.shape[1:]]), np.float32)
    weights = ops.constant(weight.numpy())
    ones = [1] * len(kernel)
    model = ov.Model(
        [ops.convolution(ops.relu(given), weights, strides, pads, pads, ones)], [given]
    )
    avoid_defects(model, device="CPU")
    avoid_defects(model, device="CPU")
    assert _count(model, "Slice") == is_rewritten
    convolve = torch.nn.functional.conv1d if len(kernel) == 1 else torch.nn.functional.conv2d
    expected = convolve(image.relu(), weight, stride=strides, padding=pads)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    result = ov.compile_model(model, "CPU", options)([image.numpy()])[0]
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["elu", "log_softmax", "mvn", "normalize_l2"])
@pytest.mark.parametrize("dtype", [ov.Type.f32, ov.Type.bf16])
def test_values_of_constants_stay_at_later_runs(kind: str, dtype: ov.Type) -> None:
    known = ops.constant(np.arange(16).reshape(4, 4) / 8 - 1, dtype)
    axis = ops.constant(np.array([1]))
    made = {
        "elu": lambda: ops.elu(known, 1.0),
        "log_softmax": lambda: ops.log_softmax(known, -1),
        "mvn": lambda: ops.mvn(known, axis, True, 0.1, "inside_sqrt"),
        "normalize_l2": lambda: ops.normalize_l2(known, axis, 0.1, "add"),
    }[kind]()
    given = ops.parameter([4, 4], np.float32)
    wide = ops.convert(ops.multiply(made, ops.convert(given, dtype.to_string())), "f32")
    model = ov.Model([ops.add(wide, ops.matmul(given, given, False, False))], [given])
    avoid_defects(model, device="CPU")
    compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    first, second = (request.infer([np.full((4, 4), 2, np.float32)])[0].copy() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_random_numbers_are_not_computed_beforehand() -> None:
    low, high = (ops.constant(np.float32(bound)) for bound in (-1, 1))
    drawn = ops.random_uniform(ops.constant(np.array([4])), low, high, "f32")
    model = ov.Model([ops.elu(drawn, 1.0)], [])
    avoid_defects(model, device="CPU")
    assert _count(model, "Elu") == 1


def test_infinities_of_constants_stay_in_float16_and_other_constants_are_left_alone() -> None:
    given = ops.parameter([3], np.float32)
    limits = ops.constant(np.array([-np.inf, 1e6, 1], np.float32))
    model = ov.Model([ops.multiply(ops.add(given, limits), ops.constant(np.float32(2)))], [given])
    avoid_defects(model, device="CPU", hint="f32")
    assert _count(model, "Convert") == 0
    avoid_defects(model, device="CPU", hint="f16")
    assert _count(model, "Convert") == 1
    result = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f16"})([np.ones(3)])[0]
    assert result[0] == -np.inf
    assert result[2] == 4


def test_a_second_look_finds_nothing_left() -> None:
    model = _attention(heads=4, tokens=4)
    avoid_defects(model, device="CPU")
    avoid_defects(model, device="CPU")
    assert _count(model, "Unsqueeze") == 1


@pytest.mark.parametrize(
    "text, numbers",
    [("2026.4.1-21234-abc", (2026, 4, 1)), ("2026.4.1", (2026, 4, 1)), ("custom", ())],
)
def test_the_numbers_of_a_release_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert version_number(text) == numbers


def _attention(*, heads: int, tokens: int, swaps: str = "result", between: str = "") -> ov.Model:
    swap = ops.constant(np.array([0, 2, 1, 3]))
    shape = [1, tokens, heads, 8] if swaps in ("query", "both") else [1, heads, tokens, 8]
    given = ops.parameter(shape, np.float32)
    key, value = (ops.parameter([1, heads, tokens, 8], np.float32) for _ in range(2))
    query = ops.transpose(given, swap) if swaps in ("query", "both") else given
    parts = [query, key, value]
    if between == "scale":
        parts[0] = ops.multiply(query, ops.constant(np.float32(0.5)))
    if between == "products of rank 3":
        flat = ops.constant(np.array([heads, tokens, 8]))
        parts = [ops.reshape(part, flat, False) for part in parts]
    scores = ops.multiply(ops.matmul(*parts[:2], False, True), ops.constant(np.float32(0.3)))
    result = ops.matmul(ops.softmax(scores, -1), parts[2], False, False)
    if between == "products of rank 3":
        result = ops.reshape(result, ops.constant(np.array([1, heads, tokens, 8])), False)
    if between == "select":
        zero = ops.constant(np.float32(0))
        result = ops.select(ops.constant(np.array(True)), result, zero)
    if swaps in ("result", "both"):
        result = ops.transpose(result, swap)
    return ov.Model([result], [given, key, value])


def _error_in_another_process(defect: KnownDefect) -> float:
    code = (
        "from npu_compiler.known_defects import entry, table\n"
        f"(defect,) = [one for one in table.KNOWN_DEFECTS if one.name == {defect.name!r}]\n"
        "print(entry.measure(defect))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        return float("inf")
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def _count(model: ov.Model, kind: str) -> int:
    return sum(node.get_type_name() == kind for node in model.get_ops())
