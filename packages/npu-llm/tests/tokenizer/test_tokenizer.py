import json

import pytest

from npu_llm.checkpoint.loading import load_tokenizer
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import OptionError
from npu_llm.tokenizer.tokenizer import Tokenizer, agrees, encode_chat

CHATS = [
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": " naïve 🙂 你好"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "<|im_end|> is text of the user's"},
    ],
]


@pytest.fixture(scope="module")
def saved(weights, tmp_path_factory):
    """transformers' tokenizer of real weights, and where it was saved."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = load_tokenizer(find_source(weights))
    tokenizer.save_pretrained(folder)
    return tokenizer, folder


@pytest.mark.parametrize("chat", CHATS)
def test_chats_become_the_tokens_that_transformers_makes(saved, chat):
    tokenizer, folder = saved
    expected = encode_chat(tokenizer, chat)["input_ids"][0].tolist()
    ours = Tokenizer(folder)
    assert ours.encode_chat(chat) == expected
    assert ours.decode(expected, skip_special_tokens=True) == tokenizer.decode(
        expected, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert ours.pad_token_id == tokenizer.pad_token_id


def test_it_agrees_only_if_it_does_the_same(saved, tmp_path):
    tokenizer, folder = saved
    assert agrees(tokenizer, folder)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert not agrees(tokenizer, tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes((folder / "chat_template.jinja").read_bytes())
    assert agrees(tokenizer, tmp_path)
    known = json.loads((tmp_path / "tokenizer.json").read_text())
    known["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(known))
    assert not agrees(tokenizer, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert not agrees(tokenizer, tmp_path)


def test_a_refusal_of_the_template_is_told(saved, tmp_path):
    _, folder = saved
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system') }}")
    with pytest.raises(OptionError, match="no system") as caught:
        Tokenizer(tmp_path).encode_chat(CHATS[1])
    assert caught.value.code == "chat-template"


def test_only_a_tokenizer_that_needs_transformers_is_copied_for_a_thread(saved):
    _, folder = saved
    ours, theirs = Tokenizer(folder), Tokenizer(folder, needs_transformers=True)
    copied = theirs.for_thread()
    assert ours.for_thread() is ours
    assert copied.backend_tokenizer is not theirs.backend_tokenizer
    assert copied.encode("Why?") == ours.encode("Why?")


def test_a_tokenizer_that_needs_transformers_does_the_same(saved):
    _, folder = saved
    ours, theirs = Tokenizer(folder), Tokenizer(folder, needs_transformers=True)
    assert theirs.chat_template == ours.chat_template
    assert theirs.pad_token_id == ours.pad_token_id
    for text in ("Why?  naïve", "<|im_end|> x"):
        ids = ours.encode(text)
        assert theirs.encode(text) == ids
        for skips in (True, False):
            decoded = ours.decode(ids, skip_special_tokens=skips)
            assert theirs.decode(ids, skip_special_tokens=skips) == decoded
    assert [theirs.encode_chat(chat) for chat in CHATS] == [ours.encode_chat(c) for c in CHATS]
