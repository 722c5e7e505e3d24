"""The vocabulary of a GGUF file: tokens, their kinds, special tokens, and end tokens.

It follows llama_vocab::impl::load of llama.cpp, which corrects the kinds of tokens by their texts,
and has more end tokens than `eos_token_id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeGuard

from npu_llm.errors import ModelError

__all__ = [
    "TokenKind",
    "Vocabulary",
    "end_tokens",
    "generation_tokens",
    "has_vocabulary",
    "is_list",
    "read_vocabulary",
    "set_generation_tokens",
    "tokenizer_error",
    "tokenizer_model",
]


class TokenKind(IntEnum):
    """The kind of a token, with the numbers in GGUF files."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a GGUF file.

    Attributes:
        model: the kind of tokenizer, such as "gpt2" for byte-level BPE.
        tokens: all texts, by id.
        ids: the id of each text.
        kinds: kind of each token, with llama.cpp's corrections.
        special: the ids of "bos", "eos", "unk", "sep", "pad" and "mask", if they exist.
        ends: the ids that end generation, ascending.
    """

    model: str
    tokens: tuple[str, ...]
    ids: dict[str, int]
    kinds: tuple[TokenKind, ...]
    special: Mapping[str, int]
    ends: tuple[int, ...]

    def of_kind(self, *kinds: TokenKind) -> list[int]:
        """Returns the ids of all tokens of some kinds, ascending."""
        wanted = set(kinds)
        return [index for index, kind in enumerate(self.kinds) if kind in wanted]


# Default special tokens.
_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "whitespace": {"bos": 11, "eos": 11},
    "gemma4": {},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
}
# For keys with the same role, the last one wins.
_KEYS = {
    "bos_token_id": "bos",
    "eos_token_id": "eos",
    "eot_token_id": "eot",
    "eom_token_id": "eom",
    "unknown_token_id": "unk",
    "seperator_token_id": "sep",
    "padding_token_id": "pad",
    "mask_token_id": "mask",
    "fim_pre_token_id": "fim_pre",
    "fim_suf_token_id": "fim_suf",
    "fim_mid_token_id": "fim_mid",
    "fim_pad_token_id": "fim_pad",
    "fim_rep_token_id": "fim_rep",
    "fim_sep_token_id": "fim_sep",
    "prefix_token_id": "fim_pre",
    "suffix_token_id": "fim_suf",
    "middle_token_id": "fim_mid",
}
_NAMED = ("bos", "eos", "unk", "sep", "pad", "mask")
# Texts of fill-in-the-middle tokens, used if no key names them.
_FILL_TEXTS = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
_ENDING_FILLS = ("fim_pad", "fim_rep", "fim_sep")
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
# Parts of gpt-oss's answer format, which are shown.
_SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# With one of these sets, "<|end|>" ends a part of an answer.
_PARTED = (
    {"<|return|>", "<|call|>"},
    {"<|return|>", "<|calls|>"},
    {"<|call|>", "<|flush|>"},
    {"<|calls|>", "<|flush|>"},
)
# With one of these "</s>" is an ordinary token.
_PLAIN_END = {"<|tool_response>", "<|plamo:eos|>"}
_WITHOUT_BOS = ("chatglm-bpe", "glm4", "glm5")


def has_vocabulary(metadata: Mapping[str, Any]) -> bool:
    """Whether a GGUF file has a tokenizer."""
    return metadata.get("tokenizer.ggml.model", "none") not in ("none", "no_vocab")


def set_generation_tokens(model: Any, metadata: Mapping[str, Any]) -> None:
    """Sets a transformers model's end tokens and suppressed tokens as in llama.cpp.

    Args:
        model: the model; unchanged if it has no generation config.
        metadata: metadata of its GGUF file.

    Raises:
        ModelError: the errors of end_tokens.
    """
    config = getattr(model, "generation_config", None)
    if config is None or not has_vocabulary(metadata):
        return
    for name, value in generation_tokens(metadata).items():
        setattr(config, name, value)


def generation_tokens(metadata: Mapping[str, Any]) -> dict[str, list[int] | None]:
    """Returns generation config attributes for end tokens and suppressed tokens.

    Args:
        metadata: metadata of a GGUF file with a tokenizer.

    Raises:
        ModelError: the errors of end_tokens.
    """
    found: dict[str, list[int] | None] = {"eos_token_id": end_tokens(metadata) or None}
    size = len(metadata["tokenizer.ggml.tokens"])
    omitted = metadata.get("tokenizer.ggml.suppress_tokens", [])
    omitted = omitted if is_list(omitted, int) else []
    if omitted := [index for index in omitted if 0 <= index < size]:
        found["suppress_tokens"] = omitted
    return found


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """Returns the tokens at which llama.cpp ends generation, ascending.

    Args:
        metadata: metadata of a GGUF file.

    Raises:
        ModelError: [gguf-tokenizer] for an invalid vocabulary.
    """
    return list(read_vocabulary(metadata).ends)


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Reads the tokens of a GGUF file.

    Args:
        metadata: the file's metadata, with arrays as sequences.

    Raises:
        ModelError: [gguf-tokenizer] for an unsupported kind of tokenizer, or an inconsistent
            vocabulary.
    """
    model = tokenizer_model(metadata)
    tokens = _read_tokens(metadata)
    ids = {text: index for index, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(text for index, text in enumerate(tokens) if ids[text] != index)
        raise tokenizer_error(
            f"`tokenizer.ggml.tokens` must be distinct, got {twice!r} twice. Convert the model "
            "again."
        )
    kinds = _read_kinds(metadata, len(tokens))
    special = _read_special(metadata, model, len(tokens))
    _find_fill_tokens(special, ids, kinds)
    ends = _find_ends(special, ids, kinds)
    return Vocabulary(
        model=model,
        tokens=tokens,
        ids=ids,
        kinds=tuple(kinds),
        special={name: special[name] for name in _NAMED if name in special},
        ends=tuple(sorted(ends)),
    )


def tokenizer_model(metadata: Mapping[str, Any]) -> str:
    """Returns the kind of tokenizer, such as "gpt2" for byte-level BPE.

    Raises:
        ModelError: [gguf-tokenizer] for an unsupported kind.
    """
    model = str(metadata.get("tokenizer.ggml.model"))
    if model in _DEFAULTS:
        return model
    raise tokenizer_error(
        f"`tokenizer.ggml.model` must be one of {', '.join(sorted(_DEFAULTS))}, got {model!r}. Use "
        "the model's checkpoint folder instead."
    )


def is_list(value: Any, *kinds: type) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list with elements of exactly these types."""
    return isinstance(value, (list, tuple)) and set(map(type, value)) <= set(kinds)


def tokenizer_error(reason: str) -> ModelError:
    """Returns the error for GGUF metadata that cannot form a tokenizer."""
    return ModelError(reason, code="gguf-tokenizer")


def _read_tokens(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not is_list(tokens, str) or not tokens:
        raise tokenizer_error(
            "`tokenizer.ggml.tokens` must be a list of texts, got "
            f"{'none' if tokens is None else 'something else'}. Convert the model again, with its "
            "tokenizer."
        )
    return tuple(text or f"[EMPTY_{index}]" for index, text in enumerate(tokens))


def _read_kinds(metadata: Mapping[str, Any], count: int) -> list[TokenKind]:
    numbers = metadata.get("tokenizer.ggml.token_type")
    if numbers is None:
        return [TokenKind.NORMAL] * count
    if not is_list(numbers, int) or len(numbers) < count:
        raise tokenizer_error(
            f"`tokenizer.ggml.token_type` must have a number for each of {count} tokens. Convert "
            "the model again."
        )
    known = {int(kind): kind for kind in TokenKind}
    return [known.get(number, TokenKind.UNDEFINED) for number in numbers[:count]]


def _read_special(metadata: Mapping[str, Any], model: str, count: int) -> dict[str, int]:
    special = dict(_DEFAULTS[model])
    if metadata.get("tokenizer.ggml.pre") in _WITHOUT_BOS:
        special.pop("bos", None)
    special = {name: index for name, index in special.items() if index < count}
    for key, name in _KEYS.items():
        index = metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(index, int) and 0 <= index < count:
            special[name] = index
    return special


def _find_fill_tokens(
    special: dict[str, int], ids: Mapping[str, int], kinds: list[TokenKind]
) -> None:
    for name, texts in _FILL_TEXTS.items():
        found = _present(ids, texts)
        if name not in special and found:
            special[name] = found[0]
            kinds[found[0]] = TokenKind.CONTROL


def _find_ends(
    special: Mapping[str, int], ids: Mapping[str, int], kinds: list[TokenKind]
) -> set[int]:
    """Returns the end tokens; corrects the kinds of some."""
    ends = {special[name] for name in _ENDING_FILLS if name in special}
    for index in _present(ids, _END_TEXTS):
        ends.add(index)
        kinds[index] = TokenKind.CONTROL
    for index in _present(ids, _SHOWN_TEXTS):
        kinds[index] = TokenKind.USER_DEFINED
    ends |= {special[name] for name in ("eos", "eot", "eom") if name in special}
    texts = {text for text, index in ids.items() if index in ends}
    if "<|end|>" in texts and any(parts <= texts for parts in _PARTED):
        ends.remove(ids["<|end|>"])
        kinds[ids["<|end|>"]] = TokenKind.USER_DEFINED
    if "</s>" in texts and _PLAIN_END & texts:
        ends.remove(ids["</s>"])
        kinds[ids["</s>"]] = TokenKind.NORMAL
    return ends


def _present(ids: Mapping[str, int], texts: Sequence[str]) -> list[int]:
    return [ids[text] for text in texts if text in ids]
