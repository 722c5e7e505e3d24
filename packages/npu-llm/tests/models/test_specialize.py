import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_llm.kv_cache.static_layout import StepSizes
from npu_llm.models.program_form import ProgramForm
from npu_llm.models.specialize import specialize

RNG = np.random.default_rng(0)
PLAIN = ProgramForm()


def random(*shape: int):
    return RNG.standard_normal(shape).astype(np.float32)


def named(shape, name):
    parameter = ops.parameter(shape, ov.Type.f32)
    parameter.set_friendly_name(name)
    parameter.output(0).set_names({name})
    return parameter


def results(model, core, **arrays):
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return list(compiled({name: arrays[name] for name in arrays}).values())


def kinds(model) -> list[str]:
    return [node.get_type_name() for node in model.get_ordered_ops()]


def part(x, begin: int, end: int):
    return ops.slice(x, *(ops.constant([number]) for number in (begin, end, 1, 3)))


def rotary_model(tokens: int) -> ov.Model:
    x, cos, sin = named([1, 3, tokens, 8], "x"), *(named([1, 1, tokens, 8], n) for n in ("c", "s"))
    turned = ops.concat([ops.multiply(part(x, 4, 8), np.float32(-1)), part(x, 0, 4)], 3)
    rotated = ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))
    return ov.Model([ops.multiply(rotated, np.float32(0.125))], [x, cos, sin])


def test_rotary_embedding_of_one_token_becomes_a_product(core):
    model = rotary_model(1)
    arrays = {"x": random(1, 3, 1, 8), "c": random(1, 1, 1, 8), "s": random(1, 1, 1, 8)}
    (expected,) = results(model, core, **arrays)
    specialize(model, sizes=StepSizes(1, 15, 1), caches=[], form=PLAIN)
    assert "MatMul" in kinds(model)
    assert "Concat" not in kinds(model)
    (got,) = results(model, core, **arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_rotary_embedding_of_several_tokens_stays():
    model = rotary_model(4)
    specialize(model, sizes=StepSizes(4, 15, 1), caches=[], form=PLAIN)
    assert "MatMul" not in kinds(model)


def test_rotary_embedding_for_3720_negates_sines(core):
    model = rotary_model(4)
    arrays = {"x": random(1, 3, 4, 8), "c": random(1, 1, 4, 8), "s": random(1, 1, 4, 8)}
    (expected,) = results(model, core, **arrays)
    before = kinds(model).count("Multiply")
    specialize(model, sizes=StepSizes(4, 15, 1), caches=[], form=ProgramForm("3720"))
    (concat,) = [node for node in model.get_ops() if node.get_type_name() == "Concat"]
    assert [one.get_node().get_type_name() for one in concat.input_values()] == ["Slice", "Slice"]
    assert kinds(model).count("Multiply") == before
    (got,) = results(model, core, **arrays)
    np.testing.assert_array_equal(got, expected)


def test_a_program_without_slots_has_no_past(core):
    past, new = named([1, 2, 0, 8], "past.0.key"), named([1, 2, 4, 8], "new")
    whole = ops.concat([past, ops.abs(new)], 2)
    model = ov.Model([whole, ops.shape_of(past)], [past, new])
    specialize(model, sizes=StepSizes(4, 0, 1), caches=["past.0.key"], form=PLAIN)
    assert [node.get_friendly_name() for node in model.get_parameters()] == ["new"]
    value = random(1, 2, 4, 8)
    got, shape = results(model, core, new=value)
    np.testing.assert_array_equal(got, abs(value))
    assert shape.tolist() == [1, 2, 0, 8]


def test_the_last_layer_runs_on_the_wanted_token_alone(core):
    x, others = named([1, 4, 8], "x"), named([1, 4, 8], "others")
    kept = ops.parameter([1], ov.Type.i64)
    kept.set_friendly_name("logits_to_keep")
    kept.output(0).set_names({"logits_to_keep"})
    weight = ops.constant(random(8, 8))
    hidden = ops.add(x, ops.matmul(others, weight, False, True))
    mean = ops.reduce_mean(ops.multiply(hidden, hidden), ops.constant([-1]), True)
    logits = ops.gather(ops.divide(hidden, ops.sqrt(mean)), kept, ops.constant(1))
    cache = ops.matmul(others, ops.constant(random(8, 8)), False, False)
    model = ov.Model([logits, cache], [x, others, kept])
    arrays = {"x": random(1, 4, 8), "others": random(1, 4, 8), "logits_to_keep": np.array([2])}
    expected = results(model, core, **arrays)
    specialize(model, sizes=StepSizes(4, 15, 1), caches=[], form=PLAIN)
    shapes = [list(n.get_output_shape(0)) for n in model.get_ops() if n.get_type_name() == "MatMul"]
    assert sorted(shapes) == [[1, 1, 8], [1, 4, 8]]
    for got, wanted in zip(results(model, core, **arrays), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_rows_that_mix_tokens_are_selected_behind_that(core):
    x = named([1, 4, 4], "x")
    kept = ops.parameter([1], ov.Type.i64)
    kept.set_friendly_name("logits_to_keep")
    kept.output(0).set_names({"logits_to_keep"})
    mixed = ops.matmul(ops.constant(random(1, 4, 4)), x, False, False)
    table = ops.constant(random(4, 4))  # a row for each token
    model = ov.Model([ops.gather(ops.add(mixed, table), kept, ops.constant(1))], [x, kept])
    arrays = {"x": random(1, 4, 4), "logits_to_keep": np.array([1])}
    (expected,) = results(model, core, **arrays)
    specialize(model, sizes=StepSizes(4, 15, 1), caches=[], form=PLAIN)
    (got,) = results(model, core, **arrays)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("scales_weights", [True, False])
def test_a_token_s_activations_are_multiplied_as_rows_where_that_pays(scales_weights, core):
    x, y = named([1, 1, 64], "x"), named([1, 1, 64], "y")
    model = ov.Model([ops.add(ops.multiply(x, y), ops.multiply(x, x))], [x, y])
    arrays = {"x": random(1, 1, 64), "y": random(1, 1, 64)}
    (expected,) = results(model, core, **arrays)
    form = ProgramForm("4000", scales_weights=scales_weights)
    specialize(model, sizes=StepSizes(1, 15, 1), caches=[], form=form)
    shapes = [n.get_output_shape(0) for n in model.get_ops() if n.get_type_name() == "Multiply"]
    assert sorted(map(list, shapes)) == [
        [1, 1, 64],
        [1, 1, 64] if scales_weights else [1, 16, 1, 4],
    ]
    (got,) = results(model, core, **arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def feed_forward() -> ov.Model:
    """A gated feed-forward block with one massive activation in its input."""
    weights = [ops.parameter(shape, ov.Type.i8) for shape in ([64, 8], [64, 8], [8, 64])]
    for number, one in enumerate(weights):
        one.output(0).set_names({f"weight.{number}"})
    x = named([1, 1, 8], "x")

    def scaled(value, number):
        product = ops.matmul(value, ops.convert(weights[number], ov.Type.f32), False, True)
        rows = weights[number].get_shape()[0]
        found = ops.multiply(product, ops.constant(np.full(rows, 1e-3, np.float32)))
        found.set_friendly_name(f"{number}/scale")
        return found

    normed = ops.multiply(ops.constant(np.full(8, 30, np.float32)), x)
    gate, up = scaled(normed, 0), scaled(normed, 1)
    down = scaled(ops.multiply(ops.swish(gate), up), 2)
    return ov.Model([ops.add(down, x)], [x, *weights])


def test_massive_activations_stay_in_the_range_of_float16(core):
    model = feed_forward()
    arrays = {
        f"weight.{n}": np.full(s, 127, np.int8) for n, s in enumerate(((64, 8), (64, 8), (8, 64)))
    }
    arrays |= {"x": np.full((1, 1, 8), 0.5, np.float32)}

    def products(model):
        found = [n for n in model.get_ordered_ops() if n.get_type_name() == "MatMul"]
        seen = ov.Model([ops.result(n.output(0)) for n in found], model.get_parameters())
        return [abs(one).max() for one in results(seen, core, **arrays)]

    assert max(products(model)) > 65504
    (expected,) = results(model, core, **arrays)
    before = kinds(model).count("Multiply")
    specialize(model, sizes=StepSizes(1, 15, 1), caches=[], form=ProgramForm("4000"))
    assert kinds(model).count("Multiply") == before, "constants take the powers of two"
    assert max(products(model)) < 65504
    (got,) = results(model, core, **arrays)
    np.testing.assert_array_equal(got, expected)


def scaled_model() -> ov.Model:
    x = named([1, 1, 8], "x")
    weight = ops.parameter([4, 8], ov.Type.i8)
    weight.output(0).set_names({"weight.0"})
    product = ops.matmul(x, ops.convert(weight, ov.Type.f32), False, True)
    scaled = ops.multiply(product, ops.constant(random(4)))
    scaled.set_friendly_name("linear/scale")
    return ov.Model([scaled], [x, weight])


def test_scales_move_to_the_weights_for_a_compiler_that_wants_them_there(core):
    model = scaled_model()
    arrays = {"x": random(1, 1, 8), "weight.0": RNG.integers(-8, 8, (4, 8)).astype(np.int8)}
    (expected,) = results(model, core, **arrays)
    form = ProgramForm("5010", scales_weights=True)
    specialize(model, sizes=StepSizes(1, 15, 1), caches=[], form=form)
    assert model.get_results()[0].input_value(0).get_node().get_type_name() == "MatMul"
    (got,) = results(model, core, **arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_the_same_program_gets_the_same_names():
    models = [rotary_model(1), rotary_model(1)]
    names = []
    for model in models:
        before = {node.get_friendly_name() for node in model.get_ops()}
        specialize(model, sizes=StepSizes(1, 15, 1), caches=[], form=PLAIN)
        found = (node.get_friendly_name() for node in model.get_ordered_ops())
        names.append([name for name in found if name not in before])
    assert names[0]
    assert names[0] == names[1]
