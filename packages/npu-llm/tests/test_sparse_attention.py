"""Sparse attention of a model: when it is dense, and operations on its caches."""

import pytest
import torch

import npu_llm
from npu_llm.checkpoint.facts import read_facts
from npu_llm.checkpoint.requirements import cache_bytes_per_token
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import OptionError
from npu_llm.evaluation import evaluate
from npu_llm.models.export import export
from npu_llm.precision import PRECISIONS
from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.sparse_attention import SparseAttention

TOKENS = torch.randint(3, 97, (1, 400), generator=torch.Generator().manual_seed(2))
CHOSEN = SparseAttention(top_k=96, after=150)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, save_tiny):
    place = tmp_path_factory.mktemp("long")
    save_tiny("llama", place / "model", max_position_embeddings=512, hidden_size=64)
    return place


@pytest.fixture(scope="module")
def load(folder):
    made = {}

    def get(sparse_attention=None, **how):
        how.setdefault("pipeline", "kernels")  # an NPU's cache has no blocks of keys
        key = (sparse_attention, *how.items())
        if key not in made:
            made[key] = npu_llm.load(
                folder / "model", dtype=how.pop("dtype", "float32"), cache_dir=folder / "cache",
                sparse_attention=sparse_attention, **how,
            )  # fmt: skip
        return made[key]

    return get


def read(model, cache, start, end):
    """Logits (tokens, vocabulary) of tokens that are read one by one."""
    return torch.cat(
        [model.step(TOKENS[:, place : place + 1], cache)[0] for place in range(start, end)]
    )


def after(model, length):
    """A cache that holds the first tokens, the prompt of 100 and then one by one."""
    cache = model.new_cache()
    model.step(TOKENS[:, :100], cache)
    if length > 100:
        read(model, cache, 100, length)
    return cache


@pytest.mark.parametrize("kv_cache", [None, "u8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_up_to_its_numbers_it_is_dense_bit_for_bit(load, dtype, kv_cache):
    dense, sparse, whole = (
        load(chosen, dtype=dtype, kv_cache=kv_cache) for chosen in (None, CHOSEN, 512)
    )
    caches = [model.new_cache() for model in (dense, sparse, whole)]
    prompts = [
        model.step(TOKENS[:, :100], cache)
        for model, cache in zip((dense, sparse, whole), caches, strict=True)
    ]
    assert torch.equal(prompts[0], prompts[1])
    expected = read(dense, caches[0], 100, 260)
    assert torch.equal(read(whole, caches[2], 100, 260), expected)
    found = read(sparse, caches[1], 100, 260)
    # Sequences of 150 are dense still: the token at place 149 is the last of one.
    assert torch.equal(found[:50], expected[:50])
    assert not torch.equal(found[50:], expected[50:])


def test_what_was_cut_off_and_written_again_is_as_if_it_were_new(load):
    model = load(CHOSEN)
    expected = read(model, after(model, 230), 230, 300)
    cache = after(model, 230)
    # Other tokens, which end in the middle of a block, and fill some.
    for token in range(75):
        model.step(TOKENS[:, 399 - token : 400 - token], cache)
    cache.crop(230)
    assert torch.equal(read(model, cache, 230, 300), expected)


def test_a_fork_chooses_among_what_it_holds(load):
    model = load(CHOSEN)
    expected = read(model, after(model, 233), 233, 300)
    cache = after(model, 233)
    cache.reorder_cache(torch.tensor([0, 0]))
    other = torch.flip(TOKENS, [1])
    found = []
    for place in range(233, 300):
        both = torch.cat([TOKENS[:, place : place + 1], other[:, place : place + 1]])
        found.append(model.step(both, cache)[0])
    assert torch.equal(torch.cat(found), expected)


def test_a_saved_cache_keeps_its_bounds(load):
    model = load(CHOSEN)
    saved = after(model, 240).tensors()
    expected = read(model, after(model, 240), 240, 280)
    cache = model.new_cache()
    cache.restore({name: tensor.clone() for name, tensor in saved.items()})
    assert torch.equal(read(model, cache, 240, 280), expected)
    kinds = [load(chosen).cache_kind for chosen in (None, CHOSEN, SparseAttention(top_k=96))]
    assert len(set(kinds)) == 3


def test_padding_is_left_out_of_the_choice(load):
    model = load(CHOSEN)
    expected = read(model, after(model, 200), 200, 230)
    cache = model.new_cache()
    rows = torch.cat([torch.zeros(1, 60, dtype=torch.int64), TOKENS[:, :200]], 1)
    mask = (torch.arange(260) >= 60)[None].long()
    model.step(rows, cache, attention_mask=mask)
    found = []
    for place in range(200, 230):
        mask = torch.cat([mask, torch.ones(1, 1, dtype=torch.int64)], 1)
        found.append(model.step(TOKENS[:, place : place + 1], cache, attention_mask=mask)[0])
    # The places before were read one by one there and as a prompt here.
    dense_start = model.new_cache()
    model.step(TOKENS[:, :200], dense_start)
    assert torch.equal(torch.cat(found), read(model, dense_start, 200, 230))
    assert expected.shape == torch.cat(found).shape


def test_it_starts_from_the_compile_cache_beside_the_dense_one(load, folder):
    load()
    how = {"dtype": "float32", "cache_dir": folder / "cache", "pipeline": "kernels"}
    model = npu_llm.load(folder / "model", sparse_attention=128, **how)
    assert model.report.entry_from_cache
    assert model.sparse_attention == SparseAttention(top_k=128)
    again = npu_llm.load(folder / "model", sparse_attention=128, **how)
    assert again.report.from_cache
    forms = {one.entry.compiled.folder for one in (model, load(), load(CHOSEN))}
    assert len(forms) == 3


@pytest.mark.parametrize("kv_cache", [None, "u8"])
def test_a_block_with_bounds_takes_what_is_computed_beforehand(load, folder, kv_cache):
    facts = read_facts(find_source(folder / "model"))
    store = load(CHOSEN, kv_cache=kv_cache)._pipeline.pool.store
    expected = cache_bytes_per_token(
        facts, PRECISIONS["float32"], kv_cache, kernels=True, has_bounds=True
    )
    assert store.block_bytes == 16 * expected


@pytest.mark.parametrize(
    "family, said", [("mistral", "a window"), ("gemma2", "a window"), ("bloom", "ALiBi")]
)
def test_a_model_that_it_would_break_is_refused(tmp_path, save_tiny, family, said):
    save_tiny(family, tmp_path / "model")
    with pytest.raises(OptionError, match=said) as caught:
        npu_llm.load(
            tmp_path / "model", dtype="float32", cache_dir=tmp_path / "cache",
            sparse_attention=64, pipeline="kernels",
        )  # fmt: skip
    assert caught.value.code == "sparse-attention"


def test_other_pipelines_refuse_it(load, each_openvino_pipeline):
    with pytest.raises(OptionError, match=each_openvino_pipeline) as caught:
        load(64, pipeline=each_openvino_pipeline)
    assert caught.value.code == "sparse-attention"


def test_an_exported_folder_takes_it(folder, tmp_path):
    exported = export(folder / "model", tmp_path / "out", dtype="float32", pipeline="kernels")
    model = npu_llm.load(exported, cache_dir=tmp_path / "cache", sparse_attention=96)
    assert model.sparse_attention.top_k == 96
    assert model.step(TOKENS[:, :5], model.new_cache()).shape == (1, 5, 97)


def test_other_numbers_are_refused_before_anything_is_read(tmp_path):
    with pytest.raises(OperatorInputError, match="100") as caught:
        npu_llm.load(tmp_path / "absent", sparse_attention=100)
    assert caught.value.code == "sparse-attention"


# Its loss


def test_the_loss_is_of_tokens_that_are_read_one_by_one(load, encode_by):
    results = {}
    for name, chosen in {"dense": None, "sparse": SparseAttention(top_k=64), "all": 320}.items():
        model = load(chosen)
        encode_by(model, lambda _: TOKENS[0].tolist())
        scored_from = 320 if name == "all" else 300
        results[name] = evaluate(model, "", window=350, stride=50, scored_from=scored_from)
    assert results["sparse"].sparse_attention == "64"
    assert results["sparse"].perplexity != results["dense"].perplexity
    model = load(None)
    expected = []
    for start in (0, 50):
        logits = model.step(TOKENS[:, start : start + 350], model.new_cache())[0].log_softmax(-1)
        expected += [-logits[i - 1, TOKENS[0, start + i]].item() for i in range(300, 350)]
    assert results["dense"].perplexity == pytest.approx(
        torch.tensor(expected).mean().exp().item(), rel=1e-4
    )


@pytest.mark.parametrize("scored_from", [None, 63, 350])
def test_nothing_to_measure_is_an_error(load, encode_by, scored_from):
    model = load(SparseAttention(top_k=64))
    encode_by(model, lambda _: TOKENS[0].tolist())
    with pytest.raises(OptionError, match="scored_from") as caught:
        evaluate(model, "", window=350, scored_from=scored_from)
    assert caught.value.code == "eval-text"
