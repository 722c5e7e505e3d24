import gc

import pytest
import torch
import transformers

from npu_llm.adapters.merging import merge
from npu_llm.errors import CaptureError, ModelError, OptionError
from npu_llm.generation.adapters import AdaptedModel


def forget_adapters(model):
    """Unloads the adapters of a model that tests share."""
    model._adapters = AdaptedModel(*model._adapters._plain)


@pytest.fixture
def model(llama, each_openvino_pipeline):
    """A model with programs with adapters in this pipeline."""
    made = llama.ours(pipeline="auto" if each_openvino_pipeline == "dynamic" else "static")
    yield made
    made.set_adapter()
    forget_adapters(made)


@pytest.fixture
def merged(llama, tmp_path):
    """merged(ids, (adapter, scale)...): logits of transformers' model with these merged."""

    def logits(ids, *adapters):
        folder = merge(llama.folder, adapters, tmp_path / f"merged-{len(list(tmp_path.iterdir()))}")
        with torch.no_grad():
            return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits

    return logits


IDS = torch.randint(3, 97, (3, 7), generator=torch.Generator().manual_seed(2))


def test_adapters_are_chosen_mixed_and_left_without_compiling(
    model, save_adapter, merged, each_openvino_pipeline, logit_tolerance
):
    near = logit_tolerance
    one = save_adapter("one", "self_attn.q_proj", "mlp.down_proj")
    two = save_adapter("two", "self_attn.q_proj", rank=2, use_rslora=True)
    plain = model(IDS).logits
    assert [model.load_adapter(path) for path in (one, two)] == ["one", "two"]
    program = model._adapters._ready.programs.program
    for choice, adapters in (
        ("one", [(one, 1.0)]),
        ({"two": 0.25}, [(two, 0.25)]),
        (["one", "two"], [(one, 1.0), (two, 1.0)]),
    ):
        model.set_adapter(choice)
        assert model.pipeline == each_openvino_pipeline
        torch.testing.assert_close(model(IDS).logits, merged(IDS, *adapters), rtol=near, atol=near)
    model.set_adapter(rows=["two", None, {"one": 2.0}])
    got = model(IDS).logits
    for row, adapters in enumerate(([(two, 1.0)], [], [(one, 2.0)])):
        expected = merged(IDS[row : row + 1], *adapters)[0]
        torch.testing.assert_close(got[row], expected, rtol=near, atol=near)
    assert model._adapters._ready.programs.program is program
    model.set_adapter()
    torch.testing.assert_close(model(IDS).logits, plain)


def test_adapters_of_a_larger_rank_have_programs_of_their_own(
    llama, save_adapter, merged, logit_tolerance
):
    near = logit_tolerance
    model = llama.ours(pipeline="static")
    small, large = save_adapter("small", "mlp.down_proj"), save_adapter(
        "large", "mlp.down_proj", rank=15
    )  # fmt: skip
    try:
        for path in (small, large):
            model.load_adapter(path)
        for choice, paths, rank in (
            ("small", [small], 16), (["small", "large"], [small, large], 32), ("large", [large], 16)
        ):  # fmt: skip
            model.set_adapter(choice)
            assert model._pipeline.programs.layout.given["adapter_scales"] == (1, rank)
            expected = merged(IDS, *((path, 1.0) for path in paths))
            torch.testing.assert_close(model(IDS).logits, expected, rtol=near, atol=near)
    finally:
        model.set_adapter()
        forget_adapters(model)


@pytest.fixture
def save_by_peft(llama, tmp_path):
    """save_by_peft(name, layers, **options): an adapter that PEFT saved, and PEFT's logits."""
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained

    def save(name, layers, ids, **options):
        torch.manual_seed(sum(map(ord, name)))
        config = peft.LoraConfig(target_modules=layers, init_lora_weights=False, **options)
        adapted = peft.get_peft_model(base(llama.folder), config)
        adapted.save_pretrained(tmp_path / name)
        with torch.no_grad():
            return tmp_path / name, adapted.merge_and_unload().eval()(ids).logits

    return save


@pytest.mark.filterwarnings("ignore")  # PEFT's and transformers' own about each other
@pytest.mark.parametrize(
    "dtype, most",
    [
        ("float32", 1e-4), pytest.param("int8", 0.05, marks=pytest.mark.long),
        pytest.param("int4", 0.3, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_three_adapters_in_one_batch_are_pefts_merged_models(llama, save_by_peft, dtype, most):
    model = llama.ours(dtype)
    kinds = {
        "attention": (["q_proj", "v_proj"], {"r": 4, "lora_alpha": 8}),
        "mlp": (["gate_proj", "down_proj"], {"r": 2, "lora_alpha": 3}),
        "root": (["o_proj", "up_proj", "lm_head"], {"r": 5, "lora_alpha": 4, "use_rslora": True}),
    }
    expected = []
    try:
        for row, (name, (layers, options)) in enumerate(kinds.items()):
            path, logits = save_by_peft(name, layers, IDS[row : row + 1], **options)
            model.load_adapter(path)
            expected.append(logits[0])
        model.set_adapter(rows=list(kinds))
        together = model(IDS).logits
        for row, wanted in enumerate(expected):
            assert float((together[row] - wanted).norm() / wanted.norm()) < most
            # In a batch or alone, a row has its adapter.
            model.set_adapter(list(kinds)[row])
            alone = model(IDS[row : row + 1]).logits[0]
            assert float((together[row] - alone).norm() / alone.norm()) < max(1e-4, most / 10)
    finally:
        model.set_adapter()
        forget_adapters(model)


def test_what_an_adapter_costs_is_told(llama, save_adapter):
    model = llama.ours()
    assert (model.pipeline, model.why_not_kernels) == ("kernels", None)
    model.set_adapter(model.load_adapter(save_adapter("one", "self_attn.q_proj")))
    assert model.pipeline == "dynamic"
    assert "adapters are in use" in model.why_not_kernels
    model.set_adapter()
    assert (model.pipeline, model.why_not_kernels) == ("kernels", None)
    forget_adapters(model)


def test_tokens_with_an_adapter_are_those_of_the_merged_model(model, save_adapter, tmp_path, llama):
    path = save_adapter("one", "self_attn.k_proj")
    model.set_adapter(model.load_adapter(path, "mine"), scale=0.5)
    folder = merge(llama.folder, [(path, 0.5)], tmp_path / "merged")
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    mask = torch.ones_like(IDS)
    expected = reference.generate(IDS, attention_mask=mask, **options)
    assert model.generate(IDS, attention_mask=mask, **options).tolist() == expected.tolist()


def test_states_and_adapters_go_together(tiny, save_adapter):
    model = tiny("lfm2").ours()
    path = save_adapter("one", "self_attn.q_proj")
    with pytest.raises(ModelError) as caught:  # its first layer has no attention
        model.load_adapter(path)
    assert caught.value.code == "adapter-base"


def test_a_cache_keeps_the_adapters_it_was_made_with(model, save_adapter):
    model.load_adapter(save_adapter("one", "self_attn.q_proj"))
    cache = model.new_cache()
    assert model.continues(cache)
    model.set_adapter("one")
    assert not model.continues(cache)
    model(IDS, past_key_values=cache)  # still runs, without the adapter
    model.set_adapter()
    assert model.continues(cache)


def test_what_can_only_be_merged_is_refused_by_name(model, save_adapter):
    q = "base_model.model.model.layers.0.self_attn.q_proj"
    for name, more, word in (
        ("dora", {f"{q}.lora_magnitude_vector": torch.rand(32)}, "DoRA"),
        ("whole", {"base_model.model.model.norm.weight": torch.rand(32)}, "model.norm.weight"),
    ):
        with pytest.raises(ModelError, match=word) as caught:
            model.load_adapter(save_adapter(name, "self_attn.q_proj", more=more))
        assert caught.value.code == "adapter-kind"
        assert "npu-llm merge" in str(caught.value)
    assert model.adapters == ()


def test_an_adapter_of_other_sizes_is_refused(tiny, save_adapter):
    path = save_adapter("one", "self_attn.k_proj")
    model = tiny("gpt2").ours()
    with pytest.raises(ModelError) as caught:
        model.load_adapter(path)
    assert caught.value.code == "adapter-base"
    other = tiny("bloom").ours()
    norm = {"base_model.model.transformer.ln_f.lora_A.weight": torch.rand(3, 32),
            "base_model.model.transformer.ln_f.lora_B.weight": torch.rand(32, 3)}  # fmt: skip
    with pytest.raises(CaptureError) as caught:
        other.load_adapter(save_adapter("norm", more=norm))
    assert caught.value.code == "adapter-module"


def test_names_must_be_known_and_used_once(model, save_adapter):
    path = save_adapter("one", "self_attn.q_proj")
    model.load_adapter(path)
    with pytest.raises(OptionError, match="again") as caught:
        model.load_adapter(path)
    assert caught.value.code == "adapter-name"
    with pytest.raises(OptionError, match="which are: one, got 'other'") as caught:
        model.set_adapter(["one", "other"])
    assert caught.value.code == "adapter-name"


def test_without_the_models_files_there_is_no_program(llama, save_adapter, tmp_path):
    import shutil

    folder = tmp_path / "moved"
    shutil.copytree(llama.folder, folder)
    from npu_llm import NPUModelForCausalLM

    model = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", cache_dir=llama.cache_dir, verify="off"
    )
    shutil.rmtree(folder)
    with pytest.raises(OptionError) as caught:
        model.load_adapter(save_adapter("one", "self_attn.q_proj"))
    assert caught.value.code == "adapter-source"
    del model
    gc.collect()
