"""The pre-tokenizers of byte-pair encoding by llama.cpp's names.

llama.cpp splits a text by one pattern, and the pieces by the next one. Some of its patterns are
simplified or implemented as loops. Patterns here split like the loops, even where these differ from
the tokenizer that a model was trained with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "as_in_unicode_15"]


@dataclass(frozen=True)
class PreTokenizer:
    """The split of a text before encoding, and other settings of a pre-tokenizer.

    Attributes:
        patterns: regular expressions in Oniguruma's syntax; each match, and each text between two
            matches, is a piece.
        is_raw: whether tokens are texts with "<0x0A>" for single bytes; otherwise a token has one
            character per byte, as in GPT-2.
        escapes_spaces: whether a space is U+2581 in tokens.
        joins_newlines: whether consecutive newlines form one token if there is one.
        ignores_merges: whether a piece that is a token skips the merges.
        adds_bos: whether a text starts with the BOS token by default.
    """

    patterns: tuple[str, ...]
    is_raw: bool = False
    escapes_spaces: bool = False
    joins_newlines: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


_CATEGORY = re.compile(r"\\p\{(\w+)\}")
# Characters added in Unicode 16, in hexadecimal.
_LATER = (
    "897 1B4E-1B4F 1B7F 1C89-1C8A 2427-2429 31E4-31E5 A7CB-A7CD A7DA-A7DC 105C0-105F3 10D40-10D8F "
    "10EC2-10EFC 11380-113E2 116D0-116E3 11BC0-11BF9 11F5A 13460-143FA 16100-16139 16D40-16D79 "
    "18CFF 1CC00-1CEB3 1E5D0-1E5FF 1F8B2-1F8C1 1FA89-1FA8F 1FABE-1FABE 1FAC6 1FADC-1FADF 1FAE9 "
    "1FBCB-1FBEF"
)


def as_in_unicode_15(pattern: str) -> str:
    """Returns a pattern with categories limited to characters of Unicode 15.1.

    llama.cpp's tables have that version; the tokenizers library has a later one.
    """
    return _CATEGORY.sub(lambda found: f"[{found[0]}&&[^{_class_of(_LATER)}]]", pattern)


def _class_of(ranges: str) -> str:
    """Converts hexadecimal ranges to the content of a character class."""
    return re.sub(r"[0-9A-F]+", r"\\x{\g<0>}", ranges).replace(" ", "")


_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
# A word of capitals, then lower case, or of characters of other scripts.
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+END"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*END"
)
_CASED_MARKED = _CASED.replace(r"[\p{L}&&", r"[[\p{L}\p{M}]&&")
_ENDING = rf"(?:{_CONTRACTION})?"
_PATHS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_CASED.replace('END', '')}|\p{{N}}|{_PATHS}"
_GPT4O = rf"{_CASED.replace('END', _ENDING)}|\p{{N}}{{1,3}}|{_PATHS}"
_GRANITE = rf"{_CASED_MARKED.replace('END', _ENDING)}|\p{{N}}{{1,3}}|{_PATHS}"
_MARKED_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_ENDING}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+"
)
_KANA_AND_HAN = r"[一-龥぀-ゟ゠-ヿ]+"
_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{F900}-\x{FAFF}"
    r"\x{2F800}-\x{2FA1F}"
)
_KIMI = (
    rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_ENDING}"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
)
# Digits in threes from the right; the first ones stay with the preceding text.
_THREES = r"(?=(?>(?:\p{N}{3})*)(?!\p{N}))"
_GROUPED = rf"[^\p{{N}}]*\p{{N}}{{1,3}}{_THREES}|[^\p{{N}}]+"
# Latin to Adlam, in hexadecimal.
_CASED_SCRIPTS = (
    "B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C "
    "38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF "
    "1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B "
    "1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC "
    "1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 "
    "2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A "
    "10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_HAN_AND_HANGUL = r"[[一-龥ࠀ-一가-퟿]&&\S]+"
_EAST_ASIAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}"
    r"\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}"
    r"\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}"
    r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_LINES = r"[^\n]+|\n+"
_JAIS2_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2 = (
    rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|{_JAIS2_SPACES}"
    r"|\s{1,2}(?!\S)|\s"
)
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)

_llama3 = PreTokenizer((_LLAMA3,))
_llama3_bos = PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True)
_llama3_whole = PreTokenizer((_LLAMA3,), ignores_merges=True)
_gpt2 = PreTokenizer((_GPT2,))
_digits = PreTokenizer((r"\p{N}", _GPT2))
_qwen2 = PreTokenizer((_QWEN2,))
_gpt4o = PreTokenizer((_GPT4O,))
_deepseek3 = PreTokenizer((r"\p{N}{1,3}", _KANA_AND_HAN, rf"{_DEEPSEEK3}[\r\n]*|{_SPACES}"))
_bailing = PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+",))
_bloom = PreTokenizer((_BLOOM,))
_tiny_aya = PreTokenizer((_GROUPED, rf"{_MARKED_WORD}|\p{{N}}{{1,3}}|{_PATHS}"))
_gemma4 = PreTokenizer((_LINES,), is_raw=True, escapes_spaces=True, joins_newlines=True)
_default = PreTokenizer((r"[\p{P}$+<=>\^~|]+", _GPT2, r"\p{N}+", r"[0-9]{3}"))

# An empty name means a file without the key.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "": _default,
    "a.x-4.0": _gpt2,
    "afmoe": PreTokenizer(
        (
            _GROUPED,
            rf"[{_EAST_ASIAN}]+",
            rf"{_DEEPSEEK3}[\r\n]*|{_SPACES}",
        )
    ),
    "bailingmoe": _bailing,
    "bailingmoe2": _bailing,
    "bloom": _bloom,
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    "chatglm-bpe": _llama3,
    "codeshell": _digits,
    "cohere2moe": _tiny_aya,
    "command-r": _digits,
    "dbrx": _llama3,
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[A-Za-z{_class_of(_CASED_SCRIPTS)}]+",
            r"\s?[!-/:-~！-／：-～‘-‟、-。]+",
            r"\s+\z",
            _HAN_AND_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-r1-qwen": _qwen2,
    "deepseek-v3": _deepseek3,
    "default": _default,
    "exaone": _digits,
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "exaone4": _gpt2,
    "f2llmv2": _qwen2,
    "falcon": PreTokenizer((r"[\p{P}$+<=>\^~|`]+", _GPT2, r"[0-9]{3}")),
    "falcon-h1": _llama3_bos,
    "falcon3": _llama3_bos,
    "gemma4": _gemma4,
    "gigachat": _gpt2,
    "glm4": _llama3_whole,
    "glm5": _llama3_whole,
    "gpt-2": _gpt2,
    "gpt-4o": _gpt4o,
    "gpt3-finnish": _bloom,
    "granite-docling": _gpt2,
    "granite-embed-multi-311m": _gemma4,
    "granite-embed-multi-97m": PreTokenizer((_GRANITE,), ignores_merges=True),
    "grok-2": _qwen2,
    "hunyuan": _qwen2,
    "hunyuan-dense": _deepseek3,
    "hy_v4": _deepseek3,
    "jais": _gpt2,
    "jais-2": PreTokenizer((_JAIS2,)),
    "jina-de": _gpt2,
    "jina-es": _gpt2,
    "jina-v1-en": _gpt2,
    "jina-v2-code": _gpt2,
    "jina-v2-de": _gpt2,
    "jina-v2-es": _gpt2,
    "jina-v5-nano": _llama3_bos,
    "joyai-llm": _deepseek3,
    "kanana2": _gpt4o,
    "kimi-k2": PreTokenizer((_KIMI,)),
    "kormo": _qwen2,
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    "lfm2": _llama3_bos,
    "llada-moe": _bailing,
    "llama-bpe": _llama3_bos,
    "llama-v3": _llama3_bos,
    "llama3": _llama3_bos,
    "llama4": _gpt4o,
    "megrez": _qwen2,
    "mellum": _gpt2,
    "mellum2": _digits,
    "midm-2.0": _llama3_bos,
    "minerva-7b": _digits,
    "minicpm5": PreTokenizer(
        (
            r"\p{N}{1,3}",
            rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}",
        ),
        ignores_merges=True,
    ),
    "minimax-m2": _gpt4o,
    "modern-bert": _gpt2,
    "mpt": _gpt2,
    "olmo": _gpt2,
    "phi-2": _gpt2,
    "pixtral": _llama3_bos,
    "poro-chat": _bloom,
    "qwen2": _qwen2,
    "qwen35": PreTokenizer((_QWEN35,)),
    "refact": _digits,
    "roberta-bpe": _gpt2,
    "sarvam-moe": PreTokenizer((_LINES,), is_raw=True, escapes_spaces=True),
    "seed-coder": PreTokenizer(
        (rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ),
    "smaug-bpe": _llama3,
    "smollm": _digits,
    "solar-open": _qwen2,
    "spark2_5": PreTokenizer(
        (r"\p{N}{1,3}", _KANA_AND_HAN, rf"{_DEEPSEEK3}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
    ),
    "stablelm2": _qwen2,
    "starcoder": _digits,
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(?:[0-9]{3})+(?![0-9]))")),
    "talkie": _gpt4o,
    "tekken": PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True),
    "tiny_aya": _tiny_aya,
    "trillion": _gpt2,
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}",)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "whitespace": PreTokenizer((r"\S+",), is_raw=True),
    "youtu": PreTokenizer(
        (
            rf"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_KANA_AND_HAN}",
            rf"{_MARKED_WORD}|\p{{N}}|{_PATHS}",
        ),
        ignores_merges=True,
    ),
}
