"""Compares tokenizers from GGUF metadata with llama.cpp's; see tools/gguf_tokens.py."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from npu_llm.errors import ModelError
from npu_llm.gguf.tokenizer import build_tokenizer, tokenizer_files
from npu_llm.gguf.vocabulary import end_tokens
from npu_llm.tokenizer.tokenizer import agrees

WITNESS = json.loads((Path(__file__).parent / "token_ids.json").read_text())
TEXTS, CASES = WITNESS["texts"], WITNESS["cases"]
ENCODED = [name for name, case in CASES.items() if "answer" in case]
ENDS = [name for name, case in CASES.items() if "ends" in case]


def metadata_of(case, **changes):
    vocabulary = WITNESS["vocabularies"][case["vocabulary"]]
    texts = [text for text, _ in case["added"]]
    kinds = [kind for _, kind in case["added"]]
    given = {
        "tokens": [*vocabulary["tokens"], *texts],
        "token_type": [*vocabulary["kinds"], *kinds],
        "merges": vocabulary.get("merges"),
        "scores": vocabulary.get("scores") and [*vocabulary["scores"], *(0.0 for _ in texts)],
        **case["metadata"],
        **changes,
    }
    given = {name: value for name, value in given.items() if value is not None}
    return {
        name if name.startswith("general.") else f"tokenizer.ggml.{name}": value
        for name, value in given.items()
    }


@pytest.mark.parametrize("name", ENCODED)
def test_tokens_are_llama_cpp_s(name):
    tokenizer = build_tokenizer(metadata_of(CASES[name]))
    with_special, plain = WITNESS["answers"][CASES[name]["answer"]]
    assert [tokenizer(text)["input_ids"] for text in TEXTS] == with_special
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True
    assert [backend.encode(text).ids for text in TEXTS] == plain


@pytest.mark.parametrize("name", [name for name in ENCODED if "text" in CASES[name]])
def test_texts_are_llama_cpp_s(name):
    tokenizer = build_tokenizer(metadata_of(CASES[name]))
    with_special, _ = WITNESS["answers"][CASES[name]["answer"]]
    expected = CASES[name]["text"]
    decoded = [tokenizer.decode(ids) for ids in with_special]
    if CASES[name]["metadata"]["model"] == "bert":  # llama.cpp takes out spaces here
        decoded, expected = (
            [text.replace(" ", "") for text in part] for part in (decoded, expected)
        )
    assert decoded == expected


@pytest.mark.parametrize("name", ENDS)
def test_ends_of_generation_are_llama_cpp_s(name):
    assert end_tokens(metadata_of(CASES[name])) == CASES[name]["ends"]


def test_bytes_of_a_character_are_decoded_together():
    tokenizer = build_tokenizer(metadata_of(CASES["pieces"]))
    ids = tokenizer("한국")["input_ids"]
    assert len(ids) == 8
    assert tokenizer.decode(ids, skip_special_tokens=True) == "한국"
    assert tokenizer.decode(ids[:-1], skip_special_tokens=True).startswith("한") is False
    tokenizer = build_tokenizer(metadata_of(CASES["pre gpt-2"]))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_added_tokens_of_deepseek_keep_their_text():
    case = {**CASES["pre deepseek-llm"], "added": []}
    metadata = metadata_of(case)
    of_byte = metadata["tokenizer.ggml.tokens"].index("ý")
    metadata["tokenizer.ggml.token_type"][of_byte] = 4
    tokenizer = build_tokenizer(metadata)
    assert tokenizer("aý")["input_ids"][-1] == of_byte
    assert tokenizer.decode(tokenizer("aýb")["input_ids"]) == "aýb"


@pytest.mark.parametrize("name", ENCODED)
def test_files_are_those_that_transformers_saves(name, tmp_path):
    metadata = metadata_of(CASES[name])
    metadata["tokenizer.chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = build_tokenizer(metadata)
    tokenizer.save_pretrained(tmp_path / "saved")
    texts = {file.name: file.read_text("utf-8") for file in (tmp_path / "saved").iterdir()}
    saved, written = (
        {name: json.loads(text) if name.endswith(".json") else text for name, text in made.items()}
        for made in (texts, tokenizer_files(metadata))
    )
    (tmp_path / "written").mkdir()
    for name, text in tokenizer_files(metadata).items():
        (tmp_path / "written" / name).write_text(text, "utf-8")
    about, ours = saved.pop("tokenizer_config.json"), written.pop("tokenizer_config.json")
    if written["tokenizer.json"]["post_processor"] is None:  # transformers' own adds nothing
        saved["tokenizer.json"]["post_processor"] = None
    assert written == saved
    assert ours.pop("tokenizer_class") == "PreTrainedTokenizerFast"
    assert {name: about[name] for name in ours} == ours
    assert agrees(tokenizer, tmp_path / "written")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "written")
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert [loaded(text)["input_ids"] for text in TEXTS[:5]] == [
        tokenizer(text)["input_ids"] for text in TEXTS[:5]
    ]


def test_chat_templates_have_their_names():
    metadata = metadata_of(CASES["pre qwen2"])
    assert build_tokenizer(metadata).chat_template is None
    metadata["tokenizer.chat_template"] = "a"
    assert build_tokenizer(metadata).chat_template == "a"
    metadata["tokenizer.chat_templates"] = ["tool_use"]
    metadata["tokenizer.chat_template.tool_use"] = "b"
    assert build_tokenizer(metadata).chat_template == {"default": "a", "tool_use": "b"}


def test_special_tokens_have_their_names():
    tokenizer = build_tokenizer(metadata_of(CASES["pieces"]))
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == (
        "<s>",
        "</s>",
        "<unk>",
    )
    # A token of texts is not made a special one.
    assert build_tokenizer(metadata_of(CASES["pre qwen2"])).eos_token is None


@pytest.mark.parametrize(
    "name, changes, quoted",
    [
        ("pre qwen2", {"pre": "qwen-2"}, "'qwen-2'.*qwen2"),
        ("pre qwen2", {"model": "rwkv"}, "got 'rwkv'"),
        ("pre qwen2", {"model": None}, "got 'None'"),
        ("pre qwen2", {"tokens": None}, "got none"),
        ("pre qwen2", {"tokens": [1, 2]}, "got something else"),
        ("pre qwen2", {"token_type": [1, 2]}, "for each of 698 tokens"),
        ("pre qwen2", {"merges": None}, "merges.*got none"),
        ("pre qwen2", {"merges": ["a q"]}, "'a' and 'q'"),
        ("pieces", {"scores": None}, "scores.*for each of"),
        ("pieces", {"scores": [0.0] * 644}, "scores.*must differ"),
        ("unigrams", {"precompiled_charsmap": [255] * 8}, "precompiled_charsmap"),
        ("unigrams", {"unknown_token_id": 99999, "tokens": ["a"]}, "unknown_token_id"),
        ("gemma 4", {"add_bos_token": True, "bos_token_id": None}, "bos_token_id.*must be a token"),
    ],
)
def test_errors_name_the_key(name, changes, quoted):
    metadata = metadata_of(CASES[name], **changes)
    with pytest.raises(ModelError, match=quoted) as failure:
        build_tokenizer(metadata)
    assert failure.value.code == "gguf-tokenizer"


def test_the_first_of_added_tokens_that_overlap_counts():
    added = [["||a||", 4], ["||bcd||", 4]]
    tokenizer = build_tokenizer(metadata_of({**CASES["pre qwen2"], "added": added}))
    found = tokenizer.convert_ids_to_tokens(tokenizer("||a||bcd||")["input_ids"])
    assert found[0] == "||a||"
    assert "".join(found) == "||a||bcd||"


def test_tokens_are_distinct():
    metadata = metadata_of({**CASES["pre qwen2"], "added": [["a", 1]]})
    with pytest.raises(ModelError, match="distinct, got 'a' twice"):
        build_tokenizer(metadata)
