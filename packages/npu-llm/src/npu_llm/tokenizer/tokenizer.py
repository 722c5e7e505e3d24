"""Tokenizer: encodes text and conversations, and decodes tokens, with a model's saved files.

If tokenizer.json describes the whole tokenizer, transformers is not imported. `agrees` checks that
when the files are saved; otherwise the class uses transformers' tokenizer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from jinja2 import TemplateError

from npu_command.host_memory import return_memory
from npu_llm.errors import OptionError, check_text
from npu_llm.tokenizer.chat_template import bounded_templates, render
from npu_llm.tokenizer.literal_text import LiteralText

if TYPE_CHECKING:
    import torch

__all__ = ["Message", "Tokenizer", "agrees", "encode_chat", "tool_schema"]

# Role, content, and other keys that a template uses: tool_calls, name, ...
Message = Mapping[str, Any]

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_LONG = 4096  # characters, encoded in about 4 ms
_TEXTS = (
    "Hello, world!  Two  spaces,\na line\tand a tab. ",
    " naïve façade, 你好，世界 🙂 1234567 ...'s don't <|im_start|> </s> [INST] x\r\n\n  y",
    "",
)
_CHATS: tuple[tuple[dict[str, str], ...], ...] = (
    ({"role": "user", "content": _TEXTS[0]},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": _TEXTS[1]}),
)


class Tokenizer:
    """A model's tokenizer."""

    def __init__(
        self,
        folder: Path,
        *,
        needs_transformers: bool = False,
        trust_remote_code: bool = False,
        wrapped: Any | None = None,
    ) -> None:
        """Reads files saved by transformers.

        Args:
            folder: the files.
            needs_transformers: whether transformers' class does more than tokenizer.json describes.
            trust_remote_code: whether to run code in the folder.
            wrapped: a tokenizer of transformers to use instead of the files.

        Raises:
            OSError, ValueError: for a folder without tokenizer.json, or with several templates.
            ModelError: [remote-code] for a tokenizer with code that is not trusted.
        """
        if needs_transformers and wrapped is None:
            # The import of transformers takes a second.
            from npu_llm.checkpoint.saved import load_saved_tokenizer

            wrapped = load_saved_tokenizer(folder, trust_remote_code=trust_remote_code)
        self._wrapped = wrapped
        if wrapped is not None:
            return
        config = json.loads((folder / "tokenizer_config.json").read_text())
        # While encoding 50,000 tokens, the library retains 20 MB more until memory is trimmed.
        self._fast = tokenizers.Tokenizer.from_buffer((folder / "tokenizer.json").read_bytes())
        return_memory()
        self._fast.no_truncation()
        self._fast.no_padding()
        named = {name: config.get(name) for name in _SPECIAL}
        self._special = {name: _text(one) for name, one in named.items() if one is not None}
        template = folder / "chat_template.jinja"
        found = template.read_text() if template.is_file() else config.get("chat_template")
        if found is not None and not isinstance(found, str):
            raise ValueError("several chat templates")
        self._chat_template = found

    def for_thread(self) -> Tokenizer:
        """Returns a tokenizer for another thread: a copy if encoding changes its settings."""
        return self if self._wrapped is None else copy.deepcopy(self)

    @property
    def chat_template(self) -> str | None:
        """The chat template; None if there is none."""
        if self._wrapped is not None:
            found: str | None = getattr(self._wrapped, "chat_template", None)
            return found
        return self._chat_template

    @property
    def backend_tokenizer(self) -> Any:
        """The backend of the tokenizers library; None for a tokenizer in Python."""
        if self._wrapped is not None:
            return getattr(self._wrapped, "backend_tokenizer", None)
        return self._fast

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens, such as role marks, by their text."""
        backend = self.backend_tokenizer
        if backend is not None:
            added = backend.get_added_tokens_decoder().items()
            return {str(token.content): number for number, token in added if token.special}
        names = getattr(self._wrapped, "all_special_tokens", ())
        ids = getattr(self._wrapped, "all_special_ids", ())
        return dict(zip(names, ids, strict=True))

    @property
    def named_tokens(self) -> dict[str, str]:
        """Special tokens with a role, such as eos_token, by name."""
        if self._wrapped is None:
            return dict(self._special)
        found = {name: getattr(self._wrapped, name, None) for name in _SPECIAL}
        return {name: str(text) for name, text in found.items() if text is not None}

    @property
    def pad_token_id(self) -> int | None:
        """The padding token; None if there is none."""
        if self._wrapped is not None:
            found: int | None = self._wrapped.pad_token_id
            return found
        text = self._special.get("pad_token")
        return None if text is None else self._fast.token_to_id(text)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the tokens of a text.

        Args:
            text: any text.
            special: whether to add the tokenizer's special tokens around a text.
        """
        ids: list[int]
        if self._wrapped is not None:
            ids = self._wrapped(text, add_special_tokens=special)["input_ids"]
        elif len(text) > _LONG:  # as a batch, for which the library releases the GIL
            (found,) = self._fast.encode_batch_fast([text], add_special_tokens=special)
            ids = found.ids
        else:
            ids = self._fast.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        """Returns the text of tokens; spaces are never cleaned up."""
        if self._wrapped is not None:
            text: str = self._wrapped.decode(
                tokens, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        else:
            text = self._fast.decode(list(tokens), skip_special_tokens=skip_special_tokens)
        return text

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
        continues_last: bool = False,
    ) -> list[int]:
        """Returns the tokens of a conversation, up to the start of an answer.

        Without a chat template the contents are joined, one per line. Special tokens in the
        messages are encoded as text.

        Args:
            messages: oldest first.
            tools: functions or JSON schemas for the template.
            template_options: other options of the template, such as `enable_thinking`.
            continues_last: whether the answer continues the last message.

        Raises:
            OptionError: [chat-template] if the template rejects the messages, [template-limit] if
                it takes too much time or memory, [text-encoding] for text that is not Unicode.
        """
        if self._wrapped is not None:
            inputs = encode_chat(
                self._wrapped,
                messages,
                tools=tools,
                template_options=template_options,
                continues_last=continues_last,
                literal=self._literal,
            )
            ids: list[int] = inputs["input_ids"][0].tolist()
            return ids
        _check(messages)
        if not self.chat_template:
            return self.encode(_joined(messages))
        schemas = None if tools is None else [tool_schema(tool) for tool in tools]
        (marked, schemas), mark = self._literal.mark((messages, schemas))
        variables = {
            "messages": [dict(message) for message in marked],
            "tools": schemas,
            "documents": None,
            "add_generation_prompt": not continues_last,
            **self._special,
            **(template_options or {}),
        }
        with _named_refusals(messages):
            text = render(self.chat_template, variables)
            text = _open_end(text, marked[-1]) if continues_last else text
        return (
            self.encode(text, special=False) if mark is None else self._literal.encode(text, mark)
        )

    @cached_property
    def _literal(self) -> LiteralText:
        return LiteralText(self if self._wrapped is None else self._wrapped, self.chat_template)


def encode_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] | None = None,
    template_options: Mapping[str, Any] | None = None,
    continues_last: bool = False,
    literal: LiteralText | None = None,
) -> dict[str, torch.Tensor]:
    """Implements Tokenizer.encode_chat with a tokenizer of transformers.

    Args:
        tokenizer: the tokenizer.
        messages: see Tokenizer.encode_chat.
        tools: see Tokenizer.encode_chat.
        template_options: see Tokenizer.encode_chat.
        continues_last: see Tokenizer.encode_chat.
        literal: marks special tokens, for the tokenizer and its template; None to create it.

    Returns:
        input_ids and attention_mask, each (1, tokens) int64.
    """
    _check(messages)
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        encoded = tokenizer(_joined(messages), return_tensors="pt")
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}
    literal = literal or LiteralText(tokenizer, str(template))
    schemas = None if tools is None else [tool_schema(tool) for tool in tools]
    (marked, schemas), mark = literal.mark((messages, schemas))
    with _named_refusals(messages), bounded_templates():
        text = tokenizer.apply_chat_template(
            [dict(message) for message in marked],
            tools=schemas,
            add_generation_prompt=not continues_last,
            tokenize=False,
            **(template_options or {}),
        )
        text = _open_end(text, marked[-1]) if continues_last else text
    if mark is None:
        encoded = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}
    import torch

    ids = torch.tensor([literal.encode(text, mark)])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def tool_schema(tool: Any) -> Any:
    """Returns the JSON schema of a tool; a function's is derived from annotations and docstring."""
    if not callable(tool):
        return tool
    from transformers.utils import get_json_schema  # takes a second

    return get_json_schema(tool)


def agrees(tokenizer: Any, folder: Path) -> bool:
    """Whether the saved files alone reproduce a tokenizer of transformers.

    Args:
        tokenizer: a tokenizer of transformers.
        folder: the folder of its saved files.
    """
    try:
        ours = Tokenizer(folder)
        template = getattr(tokenizer, "chat_template", None)
        if ours.chat_template != template or ours.pad_token_id != tokenizer.pad_token_id:
            return False
        for text in _TEXTS:
            ids = tokenizer(text)["input_ids"]
            if ours.encode(text) != ids:
                return False
            for skips in (True, False):
                decoded = tokenizer.decode(
                    ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False
                )
                if ours.decode(ids, skip_special_tokens=skips) != decoded:
                    return False
        return all(
            ours.encode_chat(chat) == encode_chat(tokenizer, chat)["input_ids"][0].tolist()
            for chat in (_CHATS if template else ())
        )
    except Exception:  # noqa: BLE001  # whatever differs: transformers' class is used then
        return False


def _open_end(text: str, message: Message) -> str:
    """Returns a rendered template up to the end of the last message's content."""
    content = str(message.get("content") or "")
    start = text.rfind(content.strip())
    if not content.strip() or start < 0:
        raise TemplateError("the last message must have content that the template preserves")
    whole = content.lstrip()
    kept = whole if text.startswith(whole, start) else content.strip()
    return text[: start + len(kept)]


def _check(messages: Sequence[Message]) -> None:
    for message in messages:
        check_text("messages", str(message.get("content")))


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(str(message.get("content") or "") for message in messages)


@contextmanager
def _named_refusals(messages: Sequence[Message]) -> Iterator[None]:
    try:
        yield
    except (TemplateError, RecursionError) as failure:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise OptionError(
            f"`messages` must suit the model's chat template, got the roles {roles} and the "
            f"template's error: {failure}. Change the messages, or omit the system message.",
            code="chat-template",
        ) from failure


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
