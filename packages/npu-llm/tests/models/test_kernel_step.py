import shutil
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from transformers import AutoModelForCausalLM

from npu_compiler.kernel_programs import Lowered
from npu_llm import NPUModelForCausalLM
from npu_llm.capture.compression import Compression
from npu_llm.capture.functional import make_functional
from npu_llm.capture.step import capture_step
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import OptionError
from npu_llm.models.entry import STEP_WEIGHTS
from npu_llm.models.kernel_step import PackedParameters, lower_step, pack_weights, unpack_rows
from npu_llm.precision import PRECISIONS
from npu_llm.verification.reference import read_reference
from npu_ops.kernel_programs.program import KernelProgram, Recipe
from npu_ops.kernel_programs.weights import (
    PackedLinear,
    interleave,
    pack,
    pack_integers,
    read_weights,
    unpack,
    write_weights,
)

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 112, "max_position_embeddings": 768,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
GPT = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 112, "n_positions": 768,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 500000.0,
}  # fmt: skip
FAMILIES = {
    "llama 3 with biases, tied": (
        "LlamaConfig",
        SIZES | {"rope_parameters": LLAMA3}
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralConfig", SIZES | {"sliding_window": 21}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 16}),
    "phi3": ("Phi3Config", SIZES),
    "gemma2": ("Gemma2Config", SIZES | {"head_dim": 32, "sliding_window": 13}),
    "gemma3": ("Gemma3TextConfig", SIZES | {"head_dim": 32, "sliding_window": 13}),
    "smollm3": ("SmolLM3Config", SIZES),
    "olmo2": ("Olmo2Config", SIZES),
    "granite": ("GraniteConfig", SIZES | {"residual_multiplier": 0.3, "logits_scaling": 2.0}),
    "starcoder2": ("Starcoder2Config", SIZES | {"sliding_window": 40}),
    "gpt2": ("GPT2Config", GPT),
    "gptj": ("GPTJConfig", GPT | {"rotary_dim": 8}),
    "gpt_neox": ("GPTNeoXConfig", SIZES),
    "stablelm": ("StableLmConfig", SIZES),
    "phi": ("PhiConfig", SIZES),
    "mixtral": ("MixtralConfig", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        SIZES | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 32},
    ),
    "gpt_oss": (
        "GptOssConfig",
        SIZES | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
        | {"sliding_window": 13},
    ),
    "opt": ("OPTConfig", SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 32}),
    "opt, norms behind": (
        "OPTConfig",
        SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 64, "do_layer_norm_before": False},
    ),
    "falcon": ("FalconConfig", SIZES),
    "falcon, all heads": (
        "FalconConfig", SIZES | {"multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "falcon, groups": (
        "FalconConfig", SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "bloom": ("BloomConfig", SIZES | {"n_layer": 2, "n_head": 4}),
    "mpt": ("MptConfig", SIZES | {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 768}),
    "cohere": ("CohereConfig", SIZES | {"use_qk_norm": True}),
    "cohere2": ("Cohere2Config", SIZES | {"head_dim": 16, "sliding_window": 13}),
    "arcee": ("ArceeConfig", SIZES),
    "nemotron": ("NemotronConfig", SIZES | {"head_dim": 16}),
    "glm": ("GlmConfig", SIZES | {"head_dim": 16}),
    "olmo": ("OlmoConfig", SIZES),
    "exaone4": ("Exaone4Config", SIZES | {"head_dim": 16, "sliding_window": 13}),
    "codegen": ("CodeGenConfig", GPT | {"rotary_dim": 8}),
    "gpt_bigcode": ("GPTBigCodeConfig", GPT),
    "gpt_neo": (
        "GPTNeoConfig",
        SIZES | {"window_size": 13, "attention_types": [[["global", "local"], 1]]},
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 48},
    ),
    "stablelm, norms by head": (
        "StableLmConfig", SIZES | {"qk_layernorm": True, "use_parallel_residual": True},
    ),
    "phi, norms by head": ("PhiConfig", SIZES | {"qk_layernorm": True}),
}  # fmt: skip
# Others differ from these in one property.
SELDOM = {
    "opt, norms behind", "falcon, all heads", "mpt", "cohere2", "arcee", "nemotron", "glm", "olmo",
    "exaone4", "codegen", "gpt_bigcode", "gpt_neo", "qwen2_moe", "stablelm, norms by head",
    "phi, norms by head", "gptj", "qwen2", "stablelm", "mixtral", "falcon",
}  # fmt: skip
GREEDY = {"do_sample": False, "max_new_tokens": 6}


def made(family, **changes):
    """A small model of transformers with random weights."""
    name, sizes = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**sizes, "initializer_range": 0.3, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # biases, norms and sinks that are not all zeros or ones
        for vector in model.parameters():
            if vector.dim() == 1 or vector.abs().max() == 0:
                vector += 0.2 * torch.randn(vector.shape)
    return model


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.long if name in SELDOM else ()) for name in FAMILIES
    ],
)
def family(request, tmp_path_factory):
    """transformers' model in float32, and ours."""
    model = made(request.param)
    folder = tmp_path_factory.mktemp("family")
    model.save_pretrained(folder / "model")
    ours = NPUModelForCausalLM.from_pretrained(
        folder / "model", dtype="float32", pipeline="kernels", cache_dir=folder / "cache"
    )
    return model, ours


def tokens(rows, count):
    generator = torch.Generator().manual_seed(count)
    return torch.randint(1, 112, (rows, count), generator=generator)


def test_greedy_tokens_are_those_of_transformers(family):
    theirs, ours = family
    for count in (1, 17, 40, 700):
        ids = tokens(1, count)
        expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
        assert ours.generate(ids, **GREEDY).tolist() == expected.tolist()


def test_batches_of_unequal_lengths_and_beams(family):
    theirs, ours = family
    ids = tokens(3, 11)
    mask = torch.ones_like(ids)
    mask[1, :4], mask[2, :9] = 0, 0
    for how in ({}, {"num_beams": 3}):
        expected = theirs.generate(ids, attention_mask=mask, **GREEDY, **how)
        assert (
            ours.generate(ids, attention_mask=mask, **GREEDY, **how).tolist() == expected.tolist()
        )


def test_a_program_is_compared_with_torch(family):
    _, ours = family
    assert ours.pipeline == "kernels"
    assert ours.verification.status == "right"


@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("llama", "bfloat16"), ("llama", "int4"), ("gpt2", "float16"), ("gpt2", "int8"),
        ("gpt_neox", "int4"), ("qwen3_moe", "int8"),
    ],
)  # fmt: skip
def test_fewer_bits_are_compared_with_torch_too(tmp_path, save_tiny, kind, dtype):
    wide = {"hidden_size": 128, "intermediate_size": 256}
    if kind == "gpt2":
        wide = {"n_embd": 128, "n_inner": 256}
    if kind == "qwen3_moe":
        wide |= {"moe_intermediate_size": 64}
    save_tiny(kind, tmp_path / "model", vocab_size=400, **wide)
    model = NPUModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=dtype, pipeline="kernels", cache_dir=tmp_path / "cache"
    )
    assert model.verification.status == "right"
    assert model.generate(tokens(1, 9), **GREEDY).shape[1] > 9


@pytest.mark.parametrize("dtype", ["bfloat16", "int4"])
def test_experts_with_biases_and_turned_weights_have_fewer_bits_too(tmp_path, dtype):
    model = made("gpt_oss", hidden_size=128, intermediate_size=64)
    model.save_pretrained(tmp_path / "model")
    ours = NPUModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=dtype, pipeline="kernels", cache_dir=tmp_path / "cache"
    )
    assert ours.verification.status == "right"


@pytest.mark.parametrize("first", ["auto", "dynamic"])
def test_a_model_that_is_no_kernel_program_is_built_once(tmp_path, save_tiny, first):
    # Its slopes are rounded to bfloat16, so that a long way is not linear in the distance.
    save_tiny("falcon", tmp_path / "model", alibi=True, max_position_embeddings=768)
    second = "dynamic" if first == "auto" else "auto"

    def load(pipeline):
        return NPUModelForCausalLM.from_pretrained(
            tmp_path / "model", dtype="float32", pipeline=pipeline, cache_dir=tmp_path / "cache"
        )

    def assert_refused():
        with pytest.raises(OptionError, match="modeling_falcon") as caught:
            load("kernels")
        assert caught.value.code == "no-kernels"

    if first == "auto":
        assert_refused()
    ids = torch.tensor([[5, 9, 3]])
    models = {pipeline: load(pipeline) for pipeline in (first, second)}
    assert len(list((tmp_path / "cache").rglob("step.bin"))) == 1
    assert models["auto"].pipeline == models["dynamic"].pipeline == "dynamic"
    assert "modeling_falcon" in models["auto"].why_not_kernels
    assert models["dynamic"].why_not_kernels is None
    assert torch.equal(models["auto"](ids).logits, models["dynamic"](ids).logits)
    again = load("auto")
    assert again.report.entry_from_cache
    assert "modeling_falcon" in again.why_not_kernels
    assert_refused()  # also from the cache
    if first == "auto":
        return
    # Its references may be missing: then it is built.
    for folder in (tmp_path / "cache").iterdir():
        if (folder / "step.bin").exists():
            shutil.rmtree(folder)
    assert load("auto").pipeline == "dynamic"
    assert len(list((tmp_path / "cache").rglob("step.bin"))) == 1


WEIGHT_SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 112,
}  # fmt: skip
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}
Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0


def permuted(value, heads):
    """Rows of queries and keys as GGUF has them for llama: pairs of rotary embeddings together."""
    return value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)


def write_gguf(model, path, kinds=lambda name: Q4_0):
    """Writes a llama with a tokenizer of single letters; matrices in the kinds asked for."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(model.config.max_position_embeddings)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(112)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(
        [chr(33 + index) for index in range(90)] + ["AB"] + [f"{i}x" for i in range(21)]
    )
    writer.add_token_types([1] * 112)
    writer.add_token_merges(["A B"])
    for name, value in model.state_dict().items():
        array = value.numpy()
        if "q_proj" in name or "k_proj" in name:
            array = permuted(array, 4 if "q_proj" in name else 2)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        if value.dim() == 1:
            writer.add_tensor(name, array)
        else:
            kind = kinds(name)
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def packed(source, folder, dtype="int4", **how):
    """A model, and the parameters that are read back from its packed weights."""
    model, weights = load_model(source)
    captured = capture_step(model)
    make_functional(captured.graph_module)
    lowered = lower_step(captured, 128)
    precision = PRECISIONS.get(dtype) or replace(PRECISIONS["int8"], weights=dtype)
    write_weights(
        folder / "weights",
        pack_weights(lowered, weights, precision=precision, compression=Compression(**how)),
    )
    weights.fill()
    return model, PackedParameters(lowered, folder / "weights")


@pytest.fixture
def model(tmp_path, save_tiny):
    return save_tiny("llama", tmp_path / "original", **WEIGHT_SIZES)


@pytest.mark.parametrize("tied", [False, True])
def test_blocks_of_q4_0_are_packed_bit_for_bit(tmp_path, save_tiny, tied):
    original = save_tiny("llama", tmp_path / "original", tie_word_embeddings=tied, **WEIGHT_SIZES)
    state = original.state_dict()
    if tied:
        del state["lm_head.weight"]
        original.state_dict = lambda: state
    file = write_gguf(original, tmp_path / "some.gguf")
    model, found = packed(find_source(file), tmp_path, group_size=128)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert torch.equal(found.read(parameter), parameter), name
    # And the file's values, without transformers' conversion.
    tensors = {
        one.name: gguf.dequantize(one.data, one.tensor_type) for one in GGUFReader(file).tensors
    }
    layer = model.model.layers[1]
    read = found.read(layer.mlp.down_proj.weight)
    np.testing.assert_array_equal(read.numpy(), tensors["blk.1.ffn_down.weight"])
    read = found.read(layer.self_attn.k_proj.weight)
    np.testing.assert_array_equal(permuted(read.numpy(), 2), tensors["blk.1.attn_k.weight"])
    stored = read_weights(tmp_path / "weights")
    linear = [one for one in stored.values() if isinstance(one, PackedLinear)]
    assert {(one.kind, one.group) for one in linear} == {("int4", 32)}
    assert all(one.zeros is None for one in linear)
    rows = sorted(row for one in linear for row in unpack(one).tolist())
    weights = [one for one in tensors.values() if one.ndim == 2]
    assert rows == sorted(row for one in weights for row in one.tolist())


def test_a_model_that_was_unpacked_can_be_saved_by_transformers(tmp_path, model):
    unpacked, weights = load_model(find_source(write_gguf(model, tmp_path / "some.gguf")))
    weights.fill()
    unpacked.save_pretrained(tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert all(map(torch.equal, saved.parameters(), unpacked.parameters()))


def test_a_model_of_q4_0_differs_by_the_rounding_of_activations(tmp_path, model):
    file = write_gguf(model, tmp_path / "some.gguf")
    ours = NPUModelForCausalLM.from_pretrained(
        file, dtype="int4", pipeline="kernels", cache_dir=tmp_path / "cache"
    )
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    assert ours.verification.status == "right"
    reference = read_reference(ours._entry.reference_path)
    with torch.no_grad():
        logits = theirs(reference.ids[None]).logits[0]
    torch.testing.assert_close(reference.logits, logits[list(reference.rows)], rtol=0, atol=1e-4)
    error = (ours(reference.ids[None]).logits[0] - logits).norm() / logits.norm()
    assert 0 < error < 0.05


def test_a_gguf_file_starts_in_its_own_precision(tmp_path, model):
    file = write_gguf(model, tmp_path / "some.gguf")
    ours = NPUModelForCausalLM.from_pretrained(file, cache_dir=tmp_path / "cache")
    assert (ours.precision.name, ours.verification.status) == ("file", "right")
    assert ours.report.weights == "GGUF: Q4_0; kept as they are"
    kinds = {
        one.kind
        for one in read_weights(ours._entry.folder / STEP_WEIGHTS).values()
        if isinstance(one, PackedLinear)
    }
    assert kinds == {"q4_0"}
    rounded = NPUModelForCausalLM.from_pretrained(
        file, pipeline="dynamic", verify="off", cache_dir=tmp_path / "cache"
    )
    assert rounded.precision.name == "bfloat16"
    assert rounded.report.weights == (
        "GGUF: Q4_0; rounded again to bfloat16, since only the kernels pipeline computes from such "
        "weights"
    )


def test_in_the_files_own_precision_each_weight_keeps_its_blocks(tmp_path, model):
    def kinds(name):
        types = GGMLQuantizationType
        return {
            "attn_q": types.Q5_0,
            "attn_k": types.Q5_0,
            "ffn_up": types.Q4_1,
            "ffn_down": types.F16,
            "token_embd": types.Q5_1,
        }.get(name.split(".")[-2], Q8_0)

    file = write_gguf(model, tmp_path / "some.gguf", kinds)
    read, found = packed(find_source(file), tmp_path, "file")
    for name, parameter in read.named_parameters():
        stored = found.read(parameter) if parameter.dim() == 2 else None
        assert stored is None or torch.equal(stored, parameter), name
        assert (stored is None) == (parameter.dim() == 1 or "down_proj" in name)
    stored = read_weights(tmp_path / "weights")
    forms = {one.kind: one for one in stored.values() if isinstance(one, PackedLinear)}
    # Queries and keys with values, gate with up, and weights of one kind.
    assert forms.keys() == {"mixed", "float16", "q5_1", "q8_0"}
    of_parts = {
        tuple(part.kind for part in one.parts)
        for one in stored.values()
        if isinstance(one, PackedLinear) and one.kind == "mixed"
    }
    assert of_parts == {("q5_0", "q8_0"), ("q8_0", "q4_1")}


def test_others_beside_such_blocks_are_rounded_in_groups_of_their_size(tmp_path, model):
    def kinds(name):
        return Q8_0 if "attn_v" in name or "token_embd" in name else Q4_0

    file = write_gguf(model, tmp_path / "some.gguf", kinds)
    model, found = packed(find_source(file), tmp_path)
    layer = model.model.layers[0].self_attn
    assert torch.equal(found.read(layer.q_proj.weight), layer.q_proj.weight)
    value, exact = found.read(layer.v_proj.weight), layer.v_proj.weight.detach()
    assert 0 < float((value - exact).abs().max()) < float(exact.abs().max()) / 8
    assert found.read(model.model.embed_tokens.weight) is None  # looked up, in float16


@pytest.mark.parametrize("dtype, kept", [("int8", "int4"), ("bfloat16", "bfloat16")])
def test_other_precisions_of_integers_keep_them(tmp_path, model, dtype, kept):
    file = write_gguf(model, tmp_path / "some.gguf")
    packed(find_source(file), tmp_path, dtype)
    kinds = {
        one.kind
        for one in read_weights(tmp_path / "weights").values()
        if isinstance(one, PackedLinear)
    }
    assert kinds == {kept}


def test_weights_of_other_origin_are_in_the_groups_asked_for(tmp_path, model):
    model, found = packed(find_source(tmp_path / "original"), tmp_path, group_size=32)
    layer = model.model.layers[0].mlp
    assert not torch.equal(found.read(layer.up_proj.weight), layer.up_proj.weight)
    stored = read_weights(tmp_path / "weights")
    assert {(one.kind, one.group) for one in stored.values() if isinstance(one, PackedLinear)} == {
        ("int4", 32),
        ("float16", 0),
    }


def integers(outputs, inputs, bits, group=None, *, zeros=True):
    size = group or inputs
    shape = (outputs, inputs // size, size)
    generator = torch.Generator().manual_seed(outputs + bits)
    values = torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.uint8)
    scales = torch.randn(shape[:2], generator=generator)
    low = torch.randint(0, 2**bits, shape[:2], generator=generator, dtype=torch.uint8)
    return pack_integers(values, scales, low if zeros else None, bits=bits)


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(
    "outputs, inputs, bits, group",
    [
        (40, 96, 4, 32),
        (16, 128, 4, 64),
        (37, 256, 4, 128),
        (9, 64, 4, 32),
        (23, 72, 8, None),
        (32, 64, 8, None),
        (16, 64, 8, None),
        (4, 128, 8, None),
    ],
)
def test_rows_are_those_of_the_whole_matrix(outputs, inputs, bits, group, zeros):
    weight = integers(outputs, inputs, bits, group, zeros=zeros)
    expected = unpack(weight)
    assert torch.equal(unpack_rows(weight), expected)
    rows = torch.tensor([outputs - 1, 3, 3, 0, 17 % outputs])
    assert torch.equal(unpack_rows(weight, rows), expected[rows])
    assert unpack_rows(weight, rows[:0]).shape == (0, inputs)


def lowered(recipes, sources, **tables):
    program = KernelProgram(
        instructions=(), widths=(), weights=recipes, layers=(), logits=None, vocabulary=0
    )
    return Lowered(program, tables, sources)


def test_parts_of_joined_weights_are_found_in_their_own_order(tmp_path):
    sources = {"a": torch.zeros(32, 64), "b": torch.zeros(16, 64), "c": torch.zeros(16, 64)}
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    recipe = Recipe(sources=("a", "b", "c"), kind="linear", order="order", interleaved=True)
    weight = integers(64, 64, 4, 32)
    write_weights(tmp_path / "weights", [("joined", weight)])
    found = PackedParameters(
        lowered({"joined": recipe}, sources, order=order), tmp_path / "weights"
    )
    parts = [found.read(source) for source in sources.values()]
    joined = torch.cat(parts)[order]
    assert torch.equal(interleave(*joined.chunk(2)), unpack(weight))
    assert torch.equal(found.rows(sources["b"], torch.tensor([[7, 0]])), parts[1][None, [7, 0]])


def test_transposed_parameters_and_experts(tmp_path):
    wide, experts = torch.zeros(96, 40), torch.zeros(3, 48, 64)
    recipes = {"wide": Recipe(sources=("wide",), kind="linear", transposed=True)}
    weights = {"wide": integers(40, 96, 4, 32)}
    for index in range(3):
        recipes[f"e{index}"] = Recipe(sources=("experts",), kind="linear", index=index)
        weights[f"e{index}"] = integers(48, 64, 8 if index == 1 else 4, None if index == 1 else 64)
    write_weights(tmp_path / "weights", weights.items())
    found = PackedParameters(
        lowered(recipes, {"wide": wide, "experts": experts}), tmp_path / "weights"
    )
    assert torch.equal(found.read(wide), unpack(weights["wide"]).t())
    assert found.rows(wide, torch.tensor([1])) is None
    stacked = torch.stack([unpack(weights[f"e{index}"]) for index in range(3)])
    assert torch.equal(found.read(experts), stacked)
    assert torch.equal(found.read(experts), stacked)


def test_floats_and_other_tensors_are_their_own(tmp_path):
    source = torch.zeros(16, 32)
    write_weights(tmp_path / "weights", [("plain", pack(torch.ones(16, 32), "float16"))])
    recipes = {"plain": Recipe(sources=("plain",), kind="linear")}
    found = PackedParameters(lowered(recipes, {"plain": source}), tmp_path / "weights")
    assert found.read(source) is None
    assert found.read(torch.zeros(3)) is None
    assert found.rows(source, torch.tensor([0])) is None
