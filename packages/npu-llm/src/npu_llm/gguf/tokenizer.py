"""Builds tokenizers from GGUF metadata, with the same tokens as llama.cpp."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import count
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from npu_llm.errors import ModelError
from npu_llm.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, as_in_unicode_15
from npu_llm.gguf.sentencepiece import score_merges
from npu_llm.gguf.vocabulary import (
    TokenKind,
    Vocabulary,
    has_vocabulary,
    is_list,
    read_vocabulary,
    tokenizer_error,
    tokenizer_model,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["build_tokenizer", "chat_template", "check_tokenizer", "tokenizer_files"]

_SPACE = "▁"
_ADDED = (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)
# Bytes that never occur in UTF-8.
_NEVER = {0xC0, 0xC1, *range(0xF5, 0x100)}
# Characters that are separate words in BERT: punctuation and Han.
_SINGLE = (
    r"[\p{P}$+<=>\^`|~\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B81F}"
    r"\x{2B920}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)
# A letter and a mark, which Unicode composes to one character.
_DECOMPOSED, _COMPOSED = "e\u0301", "\u00e9"
# An unassigned character that no letter contains, and positions where a character may combine with
# the previous one.
_APART = "\ufff0"
_BEFORE_JOINED = r"(?<!\A)(?=[^\x00-\x7F])|(?<=\r)(?=\n)|(?<=\p{Cf})(?=[\x00-\x7F])"
# A longer word is unknown; searching for its pieces takes quadratic time.
_LONGEST_WORD = 1000


def build_tokenizer(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Builds a tokenizer of transformers with the file's chat templates.

    Args:
        metadata: metadata of a GGUF file, with arrays as sequences.

    Raises:
        ModelError: [gguf-tokenizer] for an unsupported tokenizer, or inconsistent metadata.
    """
    from transformers import PreTrainedTokenizerFast  # the import takes a second

    tokenizer, arguments = _make(metadata)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=_Owned(tokenizer), **arguments)
    wrapped.chat_template = chat_template(metadata)
    return wrapped


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Returns the files of build_tokenizer's result by name, without using transformers.

    Args:
        metadata: metadata of a GGUF file with at most one chat template.

    Raises:
        ModelError: the errors of build_tokenizer.
    """
    tokenizer, arguments = _make(metadata)
    about = {**arguments, "tokenizer_class": "PreTrainedTokenizerFast"}
    found = {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(about, indent=2) + "\n",
    }
    template = chat_template(metadata)
    return found | ({"chat_template.jinja": template} if isinstance(template, str) else {})


def check_tokenizer(metadata: Mapping[str, Any]) -> None:
    """Raises build_tokenizer's errors for unsupported kinds, without reading a vocabulary.

    Args:
        metadata: metadata of a GGUF file, which may have no tokenizer.
    """
    if has_vocabulary(metadata) and _MAKERS[tokenizer_model(metadata)] is _byte_pairs:
        _pre_tokenizer(metadata)


def _make(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Returns a file's tokenizer, and further arguments of transformers' class."""
    vocabulary = read_vocabulary(metadata)
    tokenizer = _MAKERS[vocabulary.model](vocabulary, metadata)
    _add_tokens(tokenizer, vocabulary, metadata)
    _add_template(tokenizer, vocabulary, metadata)
    # transformers would search texts for tokens of other kinds.
    arguments: dict[str, Any] = {
        f"{name}_token": vocabulary.tokens[index]
        for name, index in vocabulary.special.items()
        if vocabulary.kinds[index] in (TokenKind.CONTROL, TokenKind.UNKNOWN)
    }
    arguments["clean_up_tokenization_spaces"] = False
    arguments["model_input_names"] = ["input_ids", "attention_mask"]
    return tokenizer, arguments


class _Owned:
    """A tokenizer that transformers uses without copying it, which would take 0.4 s."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __deepcopy__(self, memo: Any) -> Tokenizer:
        return self._tokenizer


def _byte_pairs(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    """Byte-pair encoding with merges, of bytes or of characters."""
    kind = _pre_tokenizer(metadata)
    ids = vocabulary.ids
    merges = _read_merges(vocabulary, metadata)
    patterns = list(kind.patterns)
    longest = _longest_newlines(ids)
    if kind.joins_newlines and longest > 1 and ("\n", "\n") not in merges:
        # Files of early conversions lack these merges.
        merges += _newline_merges(longest)
        patterns.append(rf"(?<!\n)\n{{1,{longest}}}(?!\n)|\n")
    splits: list[Any] = [
        pre_tokenizers.Split(Regex(as_in_unicode_15(pattern)), "isolated") for pattern in patterns
    ]
    if vocabulary.model == "whitespace":
        splits.insert(0, pre_tokenizers.Split(Regex(r"\s+"), "removed"))
    if not kind.is_raw:
        splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    has_bytes = kind.is_raw and _has_byte_tokens(ids)
    # llama.cpp drops text without a token.
    if not has_bytes and (unknown := _unknown_characters(ids, is_raw=kind.is_raw)):
        splits.append(pre_tokenizers.Split(Regex(unknown), "removed"))
    tokenizer = Tokenizer(
        models.BPE(ids, merges, ignore_merges=kind.ignores_merges, byte_fallback=has_bytes)
    )
    if kind.escapes_spaces:
        tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    elif vocabulary.model == "whitespace" and _flag(metadata, "normalizer.lowercase", False):
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    strips = _flag(metadata, "add_space_prefix", False)
    if kind.is_raw:
        tokenizer.decoder = _text_decoder(strips_space=strips)
    else:
        tokenizer.decoder = _byte_decoder(vocabulary)
    return tokenizer


def _sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    """SentencePiece's byte-pair encoding, in which the result's score ranks a merge."""
    merges = score_merges(vocabulary, _scores(vocabulary, metadata))
    unknown = vocabulary.special.get("unk")
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids,
            merges,
            byte_fallback=True,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=False,
        )
    )
    has_prefix = _flag(metadata, "add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = _text_decoder(strips_space=has_prefix)
    return tokenizer


def _unigram(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    """SentencePiece's unigram model."""
    kinds = vocabulary.kinds
    scores = [
        0.0 if kind is TokenKind.USER_DEFINED else score
        for score, kind in zip(_scores(vocabulary, metadata), kinds, strict=True)
    ]
    usual = [score for score, kind in zip(scores, kinds, strict=True) if kind is TokenKind.NORMAL]
    # Tokens that no text can produce must still have an id.
    worst = min(usual, default=0.0) - 1000
    for index in vocabulary.of_kind(TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.BYTE):
        scores[index] = worst
    pieces = list(zip(vocabulary.tokens, scores, strict=True))
    if "unk" not in vocabulary.special:
        raise _unnamed("unknown")
    tokenizer = Tokenizer(models.Unigram(pieces, vocabulary.special["unk"]))
    steps: list[Any] = []
    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if charsmap is not None:
        steps += _precompiled(charsmap)
    has_prefix = _flag(metadata, "add_space_prefix", False)
    if _flag(metadata, "remove_extra_whitespaces", False):
        steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" +"), _SPACE),
            normalizers.Prepend(_SPACE),
        ]
    else:
        if has_prefix:
            steps.append(normalizers.Replace(Regex(r"\A(?= *[^ ])"), " "))
        steps.append(normalizers.Replace(" ", _SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = _text_decoder(strips_space=has_prefix)
    return tokenizer


def _precompiled(charsmap: Sequence[int]) -> list[Any]:
    """Returns the steps that replace characters by a table, longest key first.

    The tokenizers library looks up a letter with marks by the letter alone, and drops the marks. So
    each character is looked up separately, after marks are composed, which has the effect of the
    longer keys in SentencePiece's tables.
    """
    try:
        table = normalizers.Precompiled(bytes(number & 0xFF for number in charsmap))
        if table.normalize_str(_DECOMPOSED) != _COMPOSED:
            return [table]
        apart = normalizers.Replace(Regex(_BEFORE_JOINED), _APART)
        together = normalizers.Replace(_APART, "")
        return [normalizers.NFC(), apart, table, together, normalizers.NFC()]
    except Exception as failure:  # of tokenizers, which has no separate class
        raise tokenizer_error(
            f"`tokenizer.ggml.precompiled_charsmap` must be SentencePiece's: {failure}. Convert "
            "the model again."
        ) from failure


def _word_pieces(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    """BERT's word pieces; the first piece of a word begins with U+2581."""
    if "unk" not in vocabulary.special:
        raise _unnamed("unknown")
    lowers = _flag(metadata, "normalizer.lowercase", True)
    steps: list[Any] = []
    if _flag(metadata, "normalizer.strip_accents", lowers):
        # llama.cpp keeps only the first consonant of a Hangul syllable.
        steps += [
            normalizers.Replace(Regex(rf"[\x{{{first:X}}}-\x{{{first + 587:X}}}]"), chr(consonant))
            for consonant, first in zip(range(0x1100, 0x1113), count(0xAC00, 588), strict=False)
        ]
        steps += [normalizers.NFD(), _removed(r"\p{M}")]
    steps.append(_removed(r"[[\p{Cc}\p{Cf}\p{Co}]&&\S]|\x{FFFD}"))
    # Each word gets one U+2581, unless it already begins with one: such a word is unknown.
    at_word = as_in_unicode_15(rf"(?<![^\s{_SINGLE}]){_SPACE}")
    steps.append(normalizers.Replace(Regex(at_word), f"\ue000{_SPACE}"))
    if lowers:
        steps += [normalizers.Replace("\u0130", "i"), normalizers.Lowercase()]
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary.ids,
            unk_token=vocabulary.tokens[vocabulary.special["unk"]],
            continuing_subword_prefix="",
            max_input_chars_per_word=_LONGEST_WORD,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+"), "removed"),
            pre_tokenizers.Split(Regex(as_in_unicode_15(_SINGLE)), "isolated"),
            pre_tokenizers.Metaspace(_SPACE, "always", split=False),
        ]
    )
    tokenizer.decoder = _text_decoder(strips_space=False)
    return tokenizer


def _removed(pattern: str) -> normalizers.Replace:
    return normalizers.Replace(Regex(as_in_unicode_15(pattern)), "")


_MAKERS = {
    "gpt2": _byte_pairs,
    "gemma4": _byte_pairs,
    "whitespace": _byte_pairs,
    "llama": _sentencepiece,
    "t5": _unigram,
    "bert": _word_pieces,
}


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "")
    if metadata.get("tokenizer.ggml.model") == "gemma4":
        name = "gemma4"
    if isinstance(name, str) and name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    near = get_close_matches(str(name), PRE_TOKENIZERS, n=3)
    raise tokenizer_error(
        f"`tokenizer.ggml.pre` must be a pre-tokenizer that this release has, got {name!r}. "
        f"{'Similar names: ' + ', '.join(near) + '. ' if near else ''}"
        "Use the model's checkpoint folder, or write the right name with gguf-set-metadata."
    )


def _read_merges(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = metadata.get("tokenizer.ggml.merges")
    if lines is None and metadata.get("tokenizer.ggml.pre") == "kimi-k2":
        return []
    if not is_list(lines, str):
        raise tokenizer_error(
            "`tokenizer.ggml.merges` must be a list of texts, got "
            f"{'none' if lines is None else 'something else'}. Convert the model again."
        )
    ids = vocabulary.ids
    merges: dict[tuple[str, str], None] = {}
    others = []
    for line in lines:
        at = line.find(" ", 1)  # a part may begin with a space
        left, right = line[:at], line[at + 1 :]
        if left + right in ids and left in ids and right in ids:
            merges[left, right] = None
        elif at > 0:
            others.append((left, right))
    _check_impossible(others, ids)
    return list(merges)


def _check_impossible(merges: Sequence[tuple[str, str]], ids: Mapping[str, int]) -> None:
    """Rejects possible merges of texts that are not tokens."""
    results = {left + right for left, right in merges}
    for left, right in merges:
        if all(part in ids or len(part) == 1 or part in results for part in (left, right)):
            raise tokenizer_error(
                f"`tokenizer.ggml.merges` must be of tokens into tokens, got {left!r} and "
                f"{right!r}. Convert the model again."
            )


def _longest_newlines(ids: Mapping[str, int]) -> int:
    """Returns the maximum length of newline runs for which all lengths have a token."""
    return next(length for length in count(1) if "\n" * length not in ids) - 1


def _newline_merges(longest: int) -> list[tuple[str, str]]:
    return [
        ("\n" * left, "\n" * (length - left))
        for length in range(longest, 1, -1)
        for left in range(1, length)
    ]


def _has_byte_tokens(ids: Mapping[str, int]) -> bool:
    has = [f"<0x{byte:02X}>" in ids for byte in range(256)]
    if any(has) and not all(has):
        raise tokenizer_error(
            f"`tokenizer.ggml.tokens` must have all 256 byte tokens or none, got {sum(has)}. "
            "Convert the model again."
        )
    return all(has)


def _unknown_characters(ids: Mapping[str, int], *, is_raw: bool) -> str | None:
    """Returns a pattern for runs of characters without a token; None if there are none."""
    if is_raw:
        known = "".join(re.escape(text) for text in ids if len(text) == 1)
        return f"[^{known}]+" if known else None
    unknown = [
        text for byte, text in _byte_characters().items() if text not in ids and byte not in _NEVER
    ]
    return f"[{''.join(re.escape(text) for text in unknown)}]+" if unknown else None


def _byte_characters() -> dict[int, str]:
    """Returns GPT-2's character for each byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }


def _scores(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> list[float]:
    scores = metadata.get("tokenizer.ggml.scores")
    size = len(vocabulary.tokens)
    if not is_list(scores, float, int) or len(scores) < size:
        raise tokenizer_error(
            f"`tokenizer.ggml.scores` must have a number for each of {size} tokens. Convert the "
            "model again."
        )
    return [float(score) for score in scores[:size]]


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    return value if isinstance(value, bool) else default


def _byte_decoder(vocabulary: Vocabulary) -> decoders.Decoder:
    """Returns the decoder of tokens with one character per byte; added tokens have their text."""
    of_byte = _byte_characters()
    characters = set(of_byte.values())
    steps: list[Any] = []
    for index in vocabulary.of_kind(*_ADDED):
        text = vocabulary.tokens[index]
        if not text.isascii() and characters.issuperset(text):
            written = "".join(of_byte[byte] for byte in text.encode())
            steps.append(decoders.Replace(Regex(rf"\A{re.escape(text)}\z"), written))
    return decoders.Sequence([*steps, decoders.ByteLevel()]) if steps else decoders.ByteLevel()


def _unnamed(name: str) -> ModelError:
    return tokenizer_error(
        f"`tokenizer.ggml.{name}_token_id` must be a token of the vocabulary, which texts need. "
        "Convert the model again."
    )


def _text_decoder(*, strips_space: bool) -> decoders.Decoder:
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips_space:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
    """Adds the tokens that are matched in a text before it is encoded.

    If two of them overlap in a text, as in "|||IP_ADDRESS|||EMAIL_ADDRESS|||" of OLMo, the first
    one wins, as in the models' own tokenizers; in llama.cpp the longer one wins.
    """
    lefts, rights = _stripping(vocabulary, metadata)
    special = vocabulary.of_kind(TokenKind.CONTROL, TokenKind.UNKNOWN)
    shown = vocabulary.of_kind(TokenKind.USER_DEFINED)
    for add, indices in ((tokenizer.add_special_tokens, special), (tokenizer.add_tokens, shown)):
        add(
            [
                AddedToken(
                    vocabulary.tokens[index],
                    normalized=False,
                    lstrip=index in lefts,
                    rstrip=index in rights,
                )
                for index in indices
            ]
        )


def _stripping(
    vocabulary: Vocabulary, metadata: Mapping[str, Any]
) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the tokens that strip spaces to their left, and those that strip to their right.

    GGUF has no key for this; llama.cpp detects some models by name. It strips ASCII spaces only;
    here all Unicode spaces are stripped, as in the tokenizers library and the models' own
    tokenizers.
    """
    pre = str(metadata.get("tokenizer.ggml.pre"))
    architecture = str(metadata.get("general.architecture"))
    name = str(metadata.get("general.name")).lower()

    def found(*texts: str) -> frozenset[int]:
        return frozenset(vocabulary.ids[text] for text in texts if text in vocabulary.ids)

    masks = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
    if any(part in pre for part in masks) or any(
        part in architecture for part in ("nomic-bert-moe", "jina-bert-v3")
    ):
        return found("<mask>"), frozenset()
    if "phi-3" in name or "phi3" in name:
        added = frozenset(vocabulary.of_kind(*_ADDED))
        return frozenset(), added - found("<unk>", "<s>", "<|endoftext|>")
    if "modern-bert" in name:
        return found("[MASK]"), frozenset()
    return frozenset(), frozenset()


def _add_template(
    tokenizer: Tokenizer, vocabulary: Vocabulary, metadata: Mapping[str, Any]
) -> None:
    """Sets the special tokens around a text."""
    before, after = _surroundings(vocabulary, metadata)
    for name in (*before, *after):
        if name not in vocabulary.special:
            raise _unnamed("seperator" if name == "sep" else name)
    if not before and not after:
        return
    names = [*before, *after]
    between = ["sep"] if vocabulary.model == "bert" else []
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *between, "$B:1" if between else "$B", *after],
        special_tokens=[
            {
                "id": name,
                "ids": [vocabulary.special[name]],
                "tokens": [vocabulary.tokens[vocabulary.special[name]]],
            }
            for name in names
        ],
    )


def _surroundings(
    vocabulary: Vocabulary, metadata: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Returns the special tokens before and after a text."""
    if vocabulary.model == "bert":
        return ["bos"], ["sep"]
    adds_bos, adds_eos = vocabulary.model == "llama", vocabulary.model == "t5"
    is_gemma4 = False
    if vocabulary.model in ("gpt2", "gemma4", "whitespace"):
        kind = _pre_tokenizer(metadata)
        adds_bos, is_gemma4 = kind.adds_bos, kind.joins_newlines
    before = ["bos"] if is_gemma4 or _flag(metadata, "add_bos_token", adds_bos) else []
    return before, ["eos"] if _flag(metadata, "add_eos_token", adds_eos) else []


def chat_template(metadata: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Returns the chat template, or several by name."""
    default = metadata.get("tokenizer.chat_template")
    names = metadata.get("tokenizer.chat_templates", [])
    names = names if is_list(names, str) else []
    found = {name: metadata.get(f"tokenizer.chat_template.{name}") for name in names}
    named = {name: template for name, template in found.items() if isinstance(template, str)}
    if isinstance(default, str):
        return {"default": default, **named} if named else default
    return named or None
