"""A saved tokenizer without transformers: its text, tokens and chat template.

It covers tokenizers whose whole work is in tokenizer.json. Whether one does what transformers'
class makes of the same files is compared when an entry is written (`agrees`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from npu_llm.prompts.chat_template import render

__all__ = ["LightTokenizer", "agrees"]

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_TEXTS = (
    "Hello, world!  Two  spaces,\na line\tand a tab. ",
    " naïve façade, 你好，世界 🙂 1234567 ...'s don't <|im_start|> </s> [INST] x\r\n\n  y",
    "",
)
_CHATS: tuple[tuple[dict[str, str], ...], ...] = (
    ({"role": "user", "content": _TEXTS[0]},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": _TEXTS[1]}),
)


class LightTokenizer:
    """What answering a prompt needs of a tokenizer.

    Attributes:
        chat_template: its template; None if there is none.
        special_tokens: the texts of special tokens by their names, such as "eos_token".
    """

    def __init__(self, folder: Path) -> None:
        """Reads what transformers saved.

        Raises:
            OSError, ValueError: for a folder without tokenizer.json, or with other files than
                transformers writes.
        """
        config = json.loads((folder / "tokenizer_config.json").read_text())
        self._tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        named = {name: config.get(name) for name in _SPECIAL}
        self.special_tokens = {name: _text(one) for name, one in named.items() if one is not None}
        template = folder / "chat_template.jinja"
        found = template.read_text() if template.is_file() else config.get("chat_template")
        if found is not None and not isinstance(found, str):
            raise ValueError("several chat templates")
        self.chat_template: str | None = found

    @property
    def pad_token_id(self) -> int | None:
        """The token that fills rows; None if there is none."""
        text = self.special_tokens.get("pad_token")
        return None if text is None else self._tokenizer.token_to_id(text)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the tokens of a conversation, so that what follows is an answer.

        Raises:
            jinja2.TemplateError: when the template rejects the messages.
            OptionError: [template-limit] when it takes too long or too much memory.
        """
        assert self.chat_template is not None
        variables = {
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **self.special_tokens,
        }
        return self._encode(render(self.chat_template, variables), special=False)

    def __call__(self, text: str) -> list[int]:
        """Returns the tokens of a text, with those that the tokenizer adds around it."""
        return self._encode(text, special=True)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Returns the text of tokens, without special ones."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def agrees(tokenizer: Any, folder: Path) -> bool:
    """Whether a saved tokenizer does the same here as in transformers, for a few texts.

    Args:
        tokenizer: transformers'.
        folder: where it was saved.
    """
    try:
        light = LightTokenizer(folder)
        template = getattr(tokenizer, "chat_template", None)
        if light.chat_template != template or light.pad_token_id != tokenizer.pad_token_id:
            return False
        for text in _TEXTS:
            ids = tokenizer(text)["input_ids"]
            decoded = tokenizer.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            if light(text) != ids or light.decode(ids) != decoded:
                return False
        for chat in _CHATS if template else ():
            from npu_llm.prompts.chat_prompt import encode_chat

            ids = encode_chat(tokenizer, chat)["input_ids"][0].tolist()
            if light.apply_chat_template(chat) != ids:
                return False
    except Exception:  # noqa: BLE001  # whatever differs: transformers' class is used then
        return False
    return True


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
