"""Keys and values in 8 bits."""

import pytest
import torch

import npu_llm
from npu_llm.choices import parse_kv_cache
from npu_llm.errors import OptionError
from npu_llm.evaluation import evaluate

PROMPT = torch.tensor([[5, 9, 3, 7, 11, 2, 8, 1]])


@pytest.fixture(scope="module")
def small(llama):
    return npu_llm.load(
        llama.folder,
        dtype="float32",
        kv_cache="u8",
        pipeline="dynamic",
        cache_dir=llama.cache_dir,
    )


def scores(model, cache, tokens):
    """Log-probabilities after each of the tokens, read one by one."""
    read = [model(token[None], past_key_values=cache).logits for token in tokens.T]
    return torch.cat(read, dim=1).log_softmax(-1)


def test_answers_are_those_of_the_exact_cache_but_for_rounding(small, llama):
    exact = llama.ours()
    assert (small.kv_cache, exact.kv_cache) == ("u8", None)
    tokens = torch.arange(40)[None] % 97
    ours, theirs = (scores(model, model.new_cache(), tokens) for model in (small, exact))
    difference = (ours - theirs).abs().max()
    assert 0 < difference < 0.05 * theirs.abs().max()


def test_beams_and_forgotten_tokens_work_on_it(small):
    beams = small.generate(PROMPT, max_new_tokens=12, num_beams=3, do_sample=False)
    assert beams.shape == (1, 20)
    cache = small.new_cache()
    scores(small, cache, torch.cat([PROMPT, PROMPT], dim=1))
    cache.crop(PROMPT.shape[1])
    after = scores(small, cache, torch.tensor([[4, 6]]))
    fresh = small.new_cache()
    scores(small, fresh, PROMPT)
    expected = scores(small, fresh, torch.tensor([[4, 6]]))
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-3)


def test_each_way_starts_from_the_compile_cache_beside_the_other(llama, tmp_path):
    def load(kv_cache):
        return npu_llm.load(
            llama.folder,
            dtype="float32",
            kv_cache=kv_cache,
            pipeline="dynamic",
            cache_dir=tmp_path,
        )

    for kv_cache in ("u8", None):
        assert not load(kv_cache).report.from_cache
    for kv_cache in ("u8", None):
        model = load(kv_cache)
        assert model.report.from_cache
        assert model.kv_cache == kv_cache


def test_exported_folder_keeps_it_in_the_compile_cache(exported_llama, tmp_path):
    folder = exported_llama("int8", "dynamic")
    before = sorted(folder.rglob("*"))
    first, second = (
        npu_llm.load(folder, kv_cache="u8", cache_dir=tmp_path / "cache") for _ in range(2)
    )
    assert "KV_CACHE_PRECISION=u8" in first.report.compiled_because
    assert (first.report.from_cache, second.report.from_cache) == (False, True)
    assert sorted(folder.rglob("*")) == before
    assert npu_llm.load(folder, cache_dir=tmp_path / "cache").report.compiled_because is None


def test_perplexity_is_measured_through_it(small, llama, encode_by):
    found = []
    for model in (small, llama.ours()):
        encode_by(model, lambda _: (torch.arange(120) * 7 % 97).tolist())
        found.append(evaluate(model, "", window=100))
    assert (found[0].kv_cache, found[1].kv_cache) == ("u8", None)
    assert found[0].perplexity != found[1].perplexity
    assert found[0].perplexity == pytest.approx(found[1].perplexity, rel=0.02)


@pytest.mark.parametrize("unknown", ["u4", "uint8", 8])
def test_another_name_is_an_error_that_lists_the_choices(unknown):
    with pytest.raises(OptionError, match=r"u8, got") as caught:
        parse_kv_cache(unknown)
    assert caught.value.code == "unknown-kv-cache"
    assert parse_kv_cache("auto") is None


def test_static_pipeline_refuses_it_before_any_work(llama, exported_llama, tmp_path):
    exported = exported_llama("int8", "static")
    for path, options in ((llama.folder, {"pipeline": "static"}), (exported, {})):
        with pytest.raises(OptionError) as caught:
            npu_llm.load(path, kv_cache="u8", cache_dir=tmp_path / "cache", **options)
        assert caught.value.code == "static-kv-cache"
    assert not (tmp_path / "cache").exists()
