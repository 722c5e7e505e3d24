import os
import shutil

import pytest
import torch

from npu_llm import NPUModelForCausalLM, export
from npu_llm.capture.static_step import make_static
from npu_llm.capture.step import capture_step
from npu_llm.choices import choose_pipeline
from npu_llm.errors import CacheError, CaptureError, ContextError, OptionError
from npu_llm.kv_cache.static import StaticCache
from npu_llm.kv_cache.static_layout import StaticSizes
from npu_llm.models import lower_step, static_programs
from npu_llm.models.static_programs import StaticPrograms, write_variant


@pytest.fixture
def model(llama):
    return llama.ours("float32", "static")


@pytest.fixture
def small(model):
    """small(): a cache that starts with 8 slots, of programs for 1 and 4 tokens."""
    pipeline = model._pipeline
    sizes = StaticSizes(64, chunks=(1, 4), smallest=8)

    def make() -> StaticCache:
        return StaticCache(pipeline.programs, sizes, relocation=pipeline.relocation)

    return make


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 97, shape, generator=torch.Generator().manual_seed(1))


def test_sizes_double_up_to_the_limit():
    sizes = StaticSizes(1000)
    assert sizes.capacities == (256, 512, 1000)
    assert [sizes.chunk(tokens) for tokens in (1, 2, 16, 17, 128, 500)] == [
        1,
        16,
        16,
        128,
        128,
        128,
    ]
    assert [sizes.capacity(tokens) for tokens in (1, 256, 257, 1000)] == [256, 256, 512, 1000]
    with pytest.raises(ContextError, match="1,001") as caught:
        sizes.capacity(1001)
    assert caught.value.code == "context-overflow"
    assert StaticSizes(100).capacities == (100,)


def test_chunks_growth_and_cuts_give_the_logits_of_one_call(llama, model, small, logit_tolerance):
    near = logit_tolerance
    ids = random_ids(2, 30)
    expected = llama.reference(ids).logits
    cache = small()
    capacities = []
    for begin, end in ((0, 5), (5, 6), (6, 7), (7, 20), (20, 21)):
        got = model(ids[:, begin:end], past_key_values=cache).logits
        torch.testing.assert_close(got, expected[:, begin:end], rtol=near, atol=near)
        capacities.append(cache.capacity)
    assert capacities == [8, 8, 8, 32, 32]
    assert cache.is_croppable
    cache.crop(9)
    assert (cache.get_seq_length(), cache.hidden_tokens) == (9, 0)
    got = model(ids[:, 9:], past_key_values=cache).logits
    torch.testing.assert_close(got, expected[:, 9:], rtol=near, atol=near)


def test_logits_of_chosen_tokens_keep_their_order(llama, model, small, logit_tolerance):
    near = logit_tolerance
    ids = random_ids(1, 10)
    expected = llama.reference(ids).logits
    for chosen in ([9], [8, 1], [0], [2, 3, 7]):
        wanted = torch.tensor(chosen)
        got = model(ids, past_key_values=small(), logits_to_keep=wanted).logits
        torch.testing.assert_close(got, expected[:, wanted], rtol=near, atol=near)


def test_rows_are_reordered_and_repeated(llama, model, small, logit_tolerance):
    near = logit_tolerance
    ids = random_ids(2, 6)
    cache = small()
    model(ids, past_key_values=cache)
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    step = torch.tensor([[7], [8], [9]])
    got = model(step, past_key_values=cache).logits
    whole = torch.cat([ids[[1, 1, 0]], step], 1)
    expected = llama.reference(whole).logits[:, -1:]
    torch.testing.assert_close(got, expected, rtol=near, atol=near)
    with pytest.raises(OptionError) as caught:
        model(step[:2], past_key_values=cache)
    assert caught.value.code == "cache-rows"


def test_tensors_of_a_cache_restore_another(model, small):
    ids = random_ids(2, 12)
    cache = small()
    model(ids[:, :9], past_key_values=cache)
    kept = cache.tensors()
    assert {tuple(tensor.shape) for tensor in kept.values()} == {(2, 2, 2, 9, 8)}
    other = small()
    other.restore(kept)
    assert other.get_seq_length() == 9
    expected = model(ids[:, 9:], past_key_values=cache).logits
    assert torch.equal(model(ids[:, 9:], past_key_values=other).logits, expected)


def test_a_step_that_is_broken_off_leaves_the_cache_as_it_was(model, small, monkeypatch):
    ids = random_ids(1, 12)
    cache = small()
    model(ids[:, :6], past_key_values=cache)
    expected = model(ids[:, 6:9], past_key_values=cache).logits
    cache.crop(6)
    get = StaticPrograms.get

    def interrupted(programs, sizes):
        if sizes.tokens == 1:
            raise KeyboardInterrupt
        return get(programs, sizes)

    monkeypatch.setattr(StaticPrograms, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):  # after a chunk of four
        model(ids[:, 6:11], past_key_values=cache)
    monkeypatch.undo()
    assert cache.get_seq_length() == 6
    assert torch.equal(model(ids[:, 6:9], past_key_values=cache).logits, expected)


def test_reset_forgets_rows_and_memory(model, small):
    cache = small()
    model(random_ids(2, 6), past_key_values=cache)
    cache.reset()
    assert not cache.is_initialized
    model(random_ids(3, 6), past_key_values=cache)
    assert cache.get_seq_length() == 6


def test_programs_are_kept_on_disk_and_few_in_memory(model, tmp_path, monkeypatch):
    monkeypatch.setattr(static_programs, "_KEPT", 2)
    known = model._pipeline.programs
    programs = StaticPrograms(known._model, known.layout, tmp_path, known._load)
    sizes = StaticSizes(64, chunks=(1,), smallest=16)
    for capacity in sizes.capacities:
        cache = StaticCache(
            programs, StaticSizes(capacity, chunks=(1,)), relocation=model._pipeline.relocation
        )
        model(random_ids(1, 1), past_key_values=cache)
    assert programs.compiled == len(sizes.capacities) == 3
    assert len(programs._programs) == 2
    again = StaticPrograms(known._model, known.layout, tmp_path, known._load)
    for capacity in sizes.capacities:
        cache = StaticCache(
            again, StaticSizes(capacity, chunks=(1,)), relocation=model._pipeline.relocation
        )
        model(random_ids(1, 1), past_key_values=cache)
    assert again.compiled == 0


def test_variants_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("")
    layout = model._pipeline.programs.layout
    shapes = layout.port_shapes(next(iter(model._pipeline.programs._programs)))
    with pytest.raises(CacheError, match="must be a writable folder") as caught:
        write_variant(model._entry.model_path, tmp_path / "file" / "v", shapes)
    assert caught.value.code == "cache-unwritable"


def test_pipeline_by_name_or_by_device():
    assert choose_pipeline(None, "CPU") == choose_pipeline("auto", "CPU") == "kernels"
    assert choose_pipeline(None, "GPU.1") == choose_pipeline("dynamic", "CPU") == "dynamic"
    assert choose_pipeline(None, "NPU") == choose_pipeline("static", "CPU") == "static"
    with pytest.raises(OptionError, match="'eager'") as caught:
        choose_pipeline("eager", "CPU")
    assert caught.value.code == "unknown-pipeline"
    with pytest.raises(OptionError, match=r'got "dynamic"\. Omit it') as caught:
        choose_pipeline("dynamic", "NPU.1")
    assert caught.value.code == "npu-dynamic"


def test_exported_folder_starts_in_its_pipeline_only(llama, exported_llama, tmp_path):
    folder = shutil.copytree(exported_llama("float32", "static"), tmp_path / "out", symlinks=True)
    again = NPUModelForCausalLM.from_pretrained(folder, cache_dir=tmp_path / "cache")
    assert again.pipeline == "static"
    assert again.report.from_cache
    ids = random_ids(1, 10)
    expected = llama.reference(ids).logits
    torch.testing.assert_close(again(ids).logits, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(OptionError, match="static, got dynamic") as caught:
        NPUModelForCausalLM.from_pretrained(folder, pipeline="dynamic")
    assert caught.value.code == "exported-pipeline"


def test_programs_that_a_folder_cannot_take_are_kept_in_the_cache(
    llama, exported_llama, tmp_path, monkeypatch
):
    folder = shutil.copytree(exported_llama("float32", "static"), tmp_path / "out", symlinks=True)
    files = sorted(folder.rglob("*"))
    monkeypatch.setattr(os, "access", lambda path, _: path != folder)  # root may write everywhere
    for is_first in (True, False):
        model = NPUModelForCausalLM.from_pretrained(folder, cache_dir=tmp_path / "cache")
        assert model.report.from_cache
        ids = random_ids(1, 10)
        torch.testing.assert_close(
            model(ids).logits, llama.reference(ids).logits, rtol=1e-4, atol=1e-4
        )
        assert (model._pipeline.programs.compiled == 0) != is_first
    assert sorted(folder.rglob("*")) == files


def test_steps_that_the_static_pipeline_cannot_run(llama):
    captured = capture_step(llama.reference)
    (output,) = (node for node in captured.graph_module.graph.nodes if node.op == "output")
    logits, longer, *rest = output.args[0]
    output.args = ((logits, longer.args[0][1], *rest),)
    with pytest.raises(CaptureError, match="dynamic pipeline") as caught:
        make_static(captured)
    assert caught.value.code == "static-cache"


def test_a_model_that_counts_its_own_tokens_has_no_static_pipeline(llama, monkeypatch, tmp_path):
    monkeypatch.setattr(lower_step, "remap_positions", lambda captured, **_: (captured, None))
    with pytest.raises(CaptureError, match="LlamaForCausalLM") as caught:
        NPUModelForCausalLM.from_pretrained(
            llama.folder, dtype="float32", pipeline="static", cache_dir=tmp_path
        )
    assert caught.value.code == "static-positions"


KINDS = ["mamba", "mamba2", "lfm2", "falcon_h1", "qwen3_next"]
GREEDY = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}


def tokens_of(rows: int, count: int) -> torch.Tensor:
    return torch.randint(3, 97, (rows, count), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("name", KINDS)
def test_tokens_are_those_of_transformers_whatever_the_prompts_length(tiny, name):
    pair = tiny(name)
    for length in (1, 16, 33):
        ids = tokens_of(1, length)
        expected = pair.reference.generate(ids, **GREEDY).tolist()
        assert pair.ours(pipeline="static").generate(ids, **GREEDY).tolist() == expected


@pytest.mark.parametrize("name", KINDS)
def test_each_row_of_a_padded_batch_has_its_own_tokens(tiny, name):
    pair = tiny(name)
    ids, mask = tokens_of(2, 19), torch.ones(2, 19, dtype=torch.int64)
    mask[1, :6] = 0
    got = pair.ours(pipeline="static").generate(ids * mask, attention_mask=mask, **GREEDY)
    alone = [pair.reference.generate(one, **GREEDY) for one in (ids[:1], ids[1:, 6:])]
    assert got[0].tolist() == alone[0][0].tolist()
    assert got[1, 6:].tolist() == alone[1][0].tolist()


@pytest.mark.parametrize("pipeline", ["auto", "static"])
def test_beams_and_guesses_are_those_of_transformers(tiny, pipeline):
    pair = tiny("lfm2")
    ids = tokens_of(1, 9).repeat(1, 2)
    expected = pair.reference.generate(ids, num_beams=3, **GREEDY).tolist()
    model = pair.ours(pipeline=pipeline)
    assert model.generate(ids, num_beams=3, **GREEDY).tolist() == expected
    expected = pair.reference.generate(ids, **GREEDY).tolist()
    assert model.generate(ids, prompt_lookup_num_tokens=3, **GREEDY).tolist() == expected


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_an_interrupted_step_leaves_the_cache_as_it_was(tiny, name, monkeypatch):
    model = tiny(name).ours(pipeline="static")
    ids = tokens_of(2, 12)
    cache = model(ids[:, :6]).past_key_values
    get = StaticPrograms.get
    calls = []

    def interrupted(programs, sizes):
        calls.append(sizes)
        if len(calls) == 2:  # after the first row
            raise KeyboardInterrupt
        return get(programs, sizes)

    for action in (
        lambda: model(ids[:, 6:], past_key_values=cache),
        lambda: cache.crop(5),
    ):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(StaticPrograms, "get", interrupted)
            with pytest.raises(KeyboardInterrupt):
                action()
        assert (cache.get_seq_length(), cache.is_broken) == (6, False)
    got = model(ids[:, 6:], past_key_values=cache).logits
    torch.testing.assert_close(got, model(ids).logits[:, 6:], rtol=1e-4, atol=1e-4)


def test_a_model_without_keys_has_one_program_for_a_token_and_no_longest_prompt(tiny):
    pipeline = tiny("mamba").ours(pipeline="static")._pipeline
    assert pipeline.sizes.capacities == (0,)
    assert pipeline.sizes.capacity(100_000) == 0


def test_chunks_are_padded_and_leave_what_single_tokens_leave(tiny):
    model = tiny("lfm2").ours(pipeline="static")
    assert model._pipeline.sizes.chunks == (1, 16)
    ids = tokens_of(1, 21)
    whole = model(ids).past_key_values.tensors()  # 16, then 5 in 16
    cache = model.new_cache()
    for place in range(21):
        model(ids[:, place : place + 1], past_key_values=cache)
    alone = cache.tensors()
    assert whole.keys() == alone.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(tensor, alone[name], rtol=1e-4, atol=1e-4)


def test_weights_of_8_bits_are_near_those_of_torch(tiny):
    ids = tokens_of(1, 18)
    expected = tiny("mamba").reference(ids).logits.detach()
    got = tiny("mamba").ours("int8", "static")(ids).logits
    assert float((got - expected).norm() / expected.norm()) < 2e-2


def test_an_exported_folder_keeps_its_states(tiny, tmp_path):
    pair = tiny("lfm2")
    folder = export(pair.folder, tmp_path / "out", dtype="float32", pipeline="static")
    again = NPUModelForCausalLM.from_pretrained(folder, cache_dir=tmp_path / "cache")
    assert again.pipeline == "static"
    ids = tokens_of(1, 17)
    expected = pair.reference.generate(ids, **GREEDY).tolist()
    assert again.generate(ids, **GREEDY).tolist() == expected


def test_a_cache_refuses_rows_that_it_does_not_hold(tiny):
    model = tiny("mamba").ours(pipeline="static")
    cache = model(tokens_of(2, 4)).past_key_values
    with pytest.raises(OptionError) as caught:
        model(tokens_of(3, 1), past_key_values=cache)
    assert caught.value.code == "cache-rows"
