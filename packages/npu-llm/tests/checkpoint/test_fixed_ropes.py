import pytest
import torch
import transformers

from npu_llm import NPUModelForCausalLM, export
from npu_llm.checkpoint.facts import context_length, read_facts
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ContextError, OptionError

SHORT, LONGEST = 32, 128
FACTORS = {
    "short_factor": [1.0, 1.3, 1.6, 1.9],
    "long_factor": [1.0, 4.0, 7.0, 10.0],
}
KINDS = {
    "phi3": (
        {"original_max_position_embeddings": SHORT},
        {"rope_type": "longrope", **FACTORS},
    ),
    "llama": (
        {},
        {
            "rope_type": "longrope",
            "factor": LONGEST / SHORT,
            "original_max_position_embeddings": SHORT,
            **FACTORS,
        },
    ),
}


def tokens(count):
    return torch.randint(3, 97, (1, count), generator=torch.Generator().manual_seed(count))


def logits_of_transformers(folder, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("name", KINDS)
def test_factors_follow_the_context_that_is_asked_for(name, tmp_path, save_tiny, logit_tolerance):
    config, ropes = KINDS[name]
    folder = tmp_path / "m"
    save_tiny(name, folder, **config, rope_scaling=ropes, max_position_embeddings=LONGEST)
    options = {"dtype": "float32", "cache_dir": tmp_path / "cache"}
    short = NPUModelForCausalLM.from_pretrained(folder, **options)
    assert short.context_length == SHORT
    ids = tokens(SHORT)
    torch.testing.assert_close(
        short(ids).logits,
        logits_of_transformers(folder, ids),
        rtol=logit_tolerance,
        atol=logit_tolerance,
    )
    with pytest.raises(ContextError, match=rf"max_context, at most {LONGEST}"):
        short(tokens(SHORT + 1))
    long = NPUModelForCausalLM.from_pretrained(folder, max_context=100, **options)
    ids = tokens(SHORT + 1)
    torch.testing.assert_close(
        long(ids).logits,
        logits_of_transformers(folder, ids),
        rtol=logit_tolerance,
        atol=logit_tolerance,
    )
    assert not long.report.entry_from_cache
    facts = read_facts(find_source(folder))
    assert (facts.context_length, facts.longest_context) == (SHORT, LONGEST)


def test_exported_folder_has_the_factors_of_its_context(tmp_path, save_tiny, logit_tolerance):
    config, ropes = KINDS["phi3"]
    folder = tmp_path / "m"
    save_tiny("phi3", folder, **config, rope_scaling=ropes, max_position_embeddings=LONGEST)
    made = export(folder, tmp_path / "exported", dtype="float32", max_context=LONGEST)
    model = NPUModelForCausalLM.from_pretrained(made, cache_dir=tmp_path / "cache")
    assert model.context_length == LONGEST
    ids = tokens(SHORT + 1)
    torch.testing.assert_close(
        model(ids).logits,
        logits_of_transformers(folder, ids),
        rtol=logit_tolerance,
        atol=logit_tolerance,
    )
    with pytest.raises(OptionError, match=rf"at most {LONGEST}") as caught:
        export(folder, tmp_path / "more", max_context=LONGEST + 1)
    assert caught.value.code == "max-context"


def test_dynamic_ropes_are_those_of_the_models_context(tmp_path, save_tiny, logit_tolerance):
    folder = tmp_path / "m"
    ropes = {"rope_type": "dynamic", "factor": 4.0}
    save_tiny("llama", folder, rope_scaling=ropes, max_position_embeddings=SHORT)
    model = NPUModelForCausalLM.from_pretrained(folder, dtype="float32", cache_dir=tmp_path / "c")
    ids = tokens(SHORT)
    torch.testing.assert_close(
        model(ids).logits,
        logits_of_transformers(folder, ids),
        rtol=logit_tolerance,
        atol=logit_tolerance,
    )
    with pytest.raises(ContextError):
        model(tokens(SHORT + 1))


_ORIGINAL = "original_max_position_embeddings"


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"model_type": "llama"}, 9000),
        ({"model_type": "phi3", "rope_scaling": {"type": "su"}}, 4096),
        ({"rope_scaling": {"type": "longrope"}}, 9000),
        ({"rope_parameters": {"full": {"rope_type": "longrope", _ORIGINAL: 7}}}, 7),
        ({"rope_scaling": {"rope_type": "yarn", _ORIGINAL: 7}}, 9000),
    ],
)
def test_context_ends_where_factors_change(config, expected):
    assert context_length({"max_position_embeddings": 9000, **config}) == expected
