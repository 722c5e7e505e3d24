"""Records llama.cpp's tokens of texts with tiny vocabularies, as test data.

    python tools/gguf_tokens.py

Run it with a Python that has llama-cpp-python and gguf. It writes the vocabularies, a case for each
pre-tokenizer and each flag, and llama.cpp's tokens to packages/npu-llm/tests/gguf/token_ids.json.
"""

from __future__ import annotations

import base64
import ctypes
import json
import runpy
import tempfile
import zlib
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import llama_cpp
from gguf import GGUFValueType, GGUFWriter

ROOT = Path(__file__).parents[1] / "packages/npu-llm"
DATA = ROOT / "tests/gguf/token_ids.json"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# cspell:disable
TEXTS = [
    "",
    " ",
    "The year 2024 had 12345678 days; I'VE paid $1,999.99, didn't they? it's  3.14",
    "def f(x_1):\n\treturn x_1 ** 2  # HTTPServer camelCase ALLCAPS\r\n\r\n\n    if a == 'b': pass",
    "今天天气很好。日本語の文章です、한국어 문장 Привет, мир! Café naïve e\u0301te\u0301",
    "नमस्ते สวัสดี مرحبا ①½Ⅻ１２ ١٢٣ ǅ ſ İ \ue000\U0001cc00 ក໑",
    "👩\u200d👩\u200d👧 🇩🇪 ❤️\u200b\ufeff\u00a0a\u3000b\u2028 \x0b\x85 ",
    "...  !!! ---->  ((a)) [b] {c} </s> <s> _=_ //a/b\n/ 'S 'tis l'eau 1a2 \t\n \n  x   ",
    "<|im_end|> \t<tool>  a<tool_call>b<|im_end|>\n\n\n<unk> ▁a ▁▁\n\n",
    "<sentinel:7>IMGIMGABCZ    a  b         c 1000000 100 10",
    "\uff21\u0301b\u0301 e\u0301\u0302 \uff21a \r\n",
]
# SentencePiece's table that composes letters and U+0301, and replaces U+FF21 and other spaces.
CHARSMAP = (
    "c-kG)b+A@N7zg0x0weqZ1BiekDlmYwgoL7S>5>lVmXa1}`7T4FG)ULbF%n9LbX`<ZIz{PjspsR&Jm<Hw`_7#"
    "6?#_lp!IL1w7E2i7LrjRv5Q3>ld=lftA-rWgD{-_YL?Uxz!os8>Y>dQ&*~x<H5J_$!B`J8DRJ=oK(vpUENk@"
    "9#!zaS~e8>l6<RdbZi7d2Qo-kySS;@}F<Rk~V$wglBkdIF&Kz=@@AcZMJQHt<6pYa97D9)F}Qi4*Hqzt7gM_"
    "DRRo=Q~YD=Jf!DpaQ$HK{>uYEhRu)Z=R!P@hILqzR2_MpIhQJlZ=gY0WpZr48+AM+d&86CLS7XS&gq?tDiNz"
    "NZ&G=|gY&(U<=GKwR{2*|so*0df!n8Ny(OF_aMu=O=z-6eAhKXvQ&?35@4wCNh~xOl1nwnZ`_JFq>Ii^qM2*"
    "F_#6*XAyoaEMYOrSjsQl*2oIEoK>vkH-2Ret69fdHn5&eY-9_Y*~;(4y9e9kPIj=HUF>BK``O2VH?<-B$sZi"
    "#FAj5vqa5LHj&XwHoZ=*BIL$fEa)I+)itYiI`G^1bm#bXiI@h?#jcD)O;x2c%&pjUUfX6)IDNp#HXT0D!uXy"
    "?9?!|`fabf$S@EXIuk81"
)
# cspell:enable
TRAINING = "\n".join(TEXTS) * 2 + "the quick brown fox  jumps over   the lazy dog; don't we'll " * 3


def byte_characters() -> dict[int, str]:
    """Returns GPT-2's character for each byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }


def train(text: str, count: int, longest: int) -> list[tuple[str, str]]:
    """Returns the merges of the most frequent pairs, without splitting the text."""
    parts, merges, seen = list(text), [], set(text)
    while len(merges) < count:
        pairs = Counter(pair for pair in pairwise(parts) if len(pair[0] + pair[1]) <= longest)
        new = [pair for pair in pairs if pair[0] + pair[1] not in seen]
        if not new:
            break
        best = max(new, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        seen.add(best[0] + best[1])
        joined: list[str] = []
        for part in parts:
            if joined and (joined[-1], part) == best:
                joined[-1] += part
            else:
                joined.append(part)
        parts = joined
    return merges


def vocabularies() -> dict[str, dict[str, Any]]:
    """Returns tokens, kinds, and merges or scores, by vocabulary name."""
    of_byte = byte_characters()
    encoded = "".join(of_byte[byte] for byte in TRAINING.encode())
    merges = train(encoded, 500, 7)
    of_bytes = [*of_byte.values(), *(left + right for left, right in merges)]
    raw = TRAINING.replace(" ", "▁")
    raw_merges = train(raw, 250, 6)
    known = sorted(set(raw) - set("한국어ก"))
    raw_merges = [pair for pair in raw_merges if set("".join(pair)) <= {*known} - {"\n"}]
    pieces = [*known, *(left + right for left, right in raw_merges)]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    # Runs of spaces share a score, as in Llama 2.
    scores = [-1e9 if set(text) == {"▁"} else -float(index) for index, text in enumerate(pieces)]
    head = ["<unk>", "<s>", "</s>"]
    words = sorted({word for word in TRAINING.lower().split() if word.isalnum()})
    letters = sorted({one for one in TRAINING.lower() if one.isprintable()} - set(" ▁"))
    return {
        "bytes": {
            "tokens": of_bytes,
            "kinds": [NORMAL] * len(of_bytes),
            "merges": [" ".join(pair) for pair in merges],
        },
        "characters": {
            "tokens": [*pieces, *bytes_],
            "kinds": [NORMAL] * len(pieces) + [BYTE] * 256,
            "merges": [" ".join(pair) for pair in raw_merges],
        },
        "pieces": {
            "tokens": [*head, *bytes_, *pieces],
            "kinds": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
            "scores": [0.0] * 259 + scores,
        },
        "unigrams": {
            "tokens": ["<pad>", "</s>", "<unk>", *pieces],
            "kinds": [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * len(pieces),
            "scores": [0.0] * 3 + [-3.0 - index % 97 / 10 for index, _ in enumerate(pieces)],
        },
        "words": {
            "tokens": [
                "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
                *("▁" + word for word in words if len(word) > 1),
                *("▁" + letter for letter in letters), *letters,
            ],
            "kinds": [CONTROL] * 5
            + [NORMAL] * (sum(len(word) > 1 for word in words) + 2 * len(letters)),
        },
    }  # fmt: skip


ADDED = [["<|im_end|>", CONTROL], ["<tool>", USER_DEFINED], ["<tool_call>", USER_DEFINED]]
BERT = {
    "bos_token_id": 2, "unknown_token_id": 1, "seperator_token_id": 3,
    "padding_token_id": 0, "mask_token_id": 4,
}  # fmt: skip


def cases(names: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns vocabulary, added tokens and metadata of each case."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in names.items():
        model = "whitespace" if name == "whitespace" else "gpt2"
        found[f"pre {name}"] = {
            "vocabulary": "characters" if kind.is_raw else "bytes",
            "added": ADDED,
            "metadata": {"model": model, "bos_token_id": 1, "eos_token_id": 2}
            | ({"pre": name} if name else {}),
        }

    def add(name: str, vocabulary: str, model: str, added: Any = (), **metadata: Any) -> None:
        found[name] = {
            "vocabulary": vocabulary,
            "added": list(added),
            "metadata": {"model": model, **metadata},
        }

    add("bytes with bos and eos", "bytes", "gpt2", ADDED, pre="qwen2", bos_token_id=1,
        eos_token_id=2, add_bos_token=True, add_eos_token=True)  # fmt: skip
    add("bytes without bos", "bytes", "gpt2", ADDED, pre="llama-bpe", add_bos_token=False)
    add("gemma 4", "characters", "gemma4", ADDED, bos_token_id=1, eos_token_id=2)
    add("newlines", "characters", "gemma4", [["\n\n", NORMAL], ["\n\n\n", NORMAL]], bos_token_id=1)
    add("pieces", "pieces", "llama", ADDED)
    add("pieces without prefix", "pieces", "llama", ADDED, add_space_prefix=False)
    add("pieces without bos", "pieces", "llama", add_bos_token=False, add_eos_token=True)
    add("pieces of Phi-3", "pieces", "llama", [*ADDED, ["<|endoftext|>", CONTROL]],
        **{"general.name": "Phi-3-mini"})  # fmt: skip
    add("unigrams", "unigrams", "t5", ADDED, remove_extra_whitespaces=True, add_space_prefix=True)
    charsmap = list(zlib.decompress(base64.b85decode(CHARSMAP)))
    add("unigrams with marks", "unigrams", "t5", ADDED, precompiled_charsmap=charsmap)
    add("unigrams with spaces", "unigrams", "t5", ADDED, add_space_prefix=True)
    add("unigrams as they are", "unigrams", "t5", add_eos_token=False)
    add("words", "words", "bert", **BERT)
    add("words in capitals", "words", "bert", **BERT, **{"normalizer.lowercase": False})
    add("words with accents", "words", "bert", **BERT, **{"normalizer.strip_accents": False})
    ends = {
        "chat": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "llama 3": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"],
        "gpt-oss": ["<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>"],
        "solar": ["<|end|>", "<|calls|>", "<|flush|>"],
        "phi": ["<|end|>", "<|endoftext|>", "<|user|>"],
        "gemma 4": ["<eos>", "<turn|>", "<|tool_response>", "</s>"],
        "paddle": ["</s>", "<end_of_utterance>"],
        "fill": ["<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "[PAD]"],
        "plain": [],
    }
    for name, texts in ends.items():
        add(f"ends of {name}", "bytes", "gpt2", [[text, CONTROL] for text in texts],
            pre="gpt-2", eos_token_id=756)  # fmt: skip
        add(f"ends of {name} in words", "bytes", "gpt2", [[text, NORMAL] for text in texts],
            pre="gpt-2", eot_token_id=3, eom_token_id=4)  # fmt: skip
    add("ends beyond the vocabulary", "bytes", "gpt2", pre="gpt-2", eos_token_id=99999)
    return found


def write_file(path: Path, case: dict[str, Any], vocabulary: dict[str, Any]) -> None:
    """Writes a GGUF file without tensors."""
    writer = GGUFWriter(str(path), "llama")
    added = case["added"]
    prefix = "tokenizer.ggml."
    writer.add_array(prefix + "tokens", [*vocabulary["tokens"], *(text for text, _ in added)])
    writer.add_array(prefix + "token_type", [*vocabulary["kinds"], *(kind for _, kind in added)])
    if "merges" in vocabulary:
        writer.add_array(prefix + "merges", vocabulary["merges"])
    if "scores" in vocabulary:
        writer.add_array(prefix + "scores", [*vocabulary["scores"], *(0.0 for _ in added)])
    for name, value in case["metadata"].items():
        key = name if name.startswith("general.") else prefix + name
        put: dict[type, Any] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            str: writer.add_string,
        }
        put[list] = partial(
            writer.add_key_value, vtype=GGUFValueType.ARRAY, sub_type=GGUFValueType.UINT8
        )
        put[type(value)](key, value)
    sizes = ("context_length", "embedding_length", "block_count", "feed_forward_length")
    for name in (*sizes, "attention.head_count"):
        writer.add_uint32(f"llama.{name}", 64)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def answer(path: Path) -> dict[str, Any]:
    """Returns llama.cpp's tokens of all texts, their text, and the ends of generation."""
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    vocabulary = llama_cpp.llama_model_get_vocab(model.model)
    found: dict[str, Any] = {}
    for name, is_special in (("special", True), ("plain", False)):
        found[name] = [model.tokenize(text.encode(), True, is_special) for text in TEXTS]
    found["text"] = [detokenize(vocabulary, ids) for ids in found["special"]]
    found["ends"] = [
        index for index in range(model.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocabulary, index)
    ]
    return found


def detokenize(vocabulary: Any, ids: list[int]) -> str:
    """Returns the text of tokens, special ones included."""
    buffer = ctypes.create_string_buffer(10_000)
    tokens = (llama_cpp.llama_token * len(ids))(*ids)
    size = llama_cpp.llama_detokenize(vocabulary, tokens, len(ids), buffer, 10_000, False, True)
    return buffer.raw[:size].decode(errors="replace")


def main() -> None:
    """Writes the data."""
    names = runpy.run_path(str(ROOT / "src/npu_llm/gguf/pre_tokenizers.py"))["PRE_TOKENIZERS"]
    known, found = vocabularies(), cases(names)
    answers: list[Any] = []
    for name, case in found.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.gguf"
            write_file(path, case, known[case["vocabulary"]])
            given = answer(path)
        if name.startswith("ends"):
            case["ends"] = given["ends"]
            continue
        kept = [given["special"], given["plain"]]
        if kept not in answers:
            answers.append(kept)
        case["answer"] = answers.index(kept)
        if case["metadata"]["model"] in ("llama", "t5", "bert"):
            case["text"] = given["text"]
        print(name)
    data = {"texts": TEXTS, "vocabularies": known, "answers": answers, "cases": found}
    lines = []
    for part, values in data.items():
        if isinstance(values, dict):
            rows = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in values.items()]
        else:
            rows = [json.dumps(one) for one in values]
        opening, closing = "[]" if isinstance(values, list) else "{}"
        lines.append(f"{json.dumps(part)}: {opening}\n" + ",\n".join(rows) + f"\n{closing}")
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
