"""Creates the models for benchmarks/families.py, and the other engines' formats of them.

    python _families_files.py WORK FAMILY checkpoint|openvino [--small]

Run it with the interpreter that has the required packages. Weights are random and seeded, because
only sizes determine a step's time. Another family is another entry of FAMILIES; another kind needs
a function in `_MAKERS` here and an entry in the kinds of _families_worker.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "Family", "form_path"]


@dataclass(frozen=True)
class Family:
    """A model to benchmark.

    Attributes:
        kind: its task: "speech", "text" or "picture".
        sizes: arguments of its config.
        unit: unit of the table.
    """

    kind: str
    sizes: dict[str, Any]
    unit: str


def _whisper(width: int, layers: int, heads: int) -> dict[str, int]:
    halves = ("encoder", "decoder")
    per_half = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
    sizes = {f"{half}_{name}": size for half in halves for name, size in per_half.items()}
    return sizes | {"d_model": width}


def _smolvlm(side: int, eyes: tuple[int, int, int], text: tuple[int, int, int]) -> dict[str, Any]:
    """Returns sizes by the image side, and the width, layers and MLP width of both halves."""
    width, layers, inner = text
    return {
        "vision_config": {
            "image_size": side, "patch_size": 16, "hidden_size": eyes[0], "num_attention_heads": 12,
            "num_hidden_layers": eyes[1], "intermediate_size": eyes[2],
        },
        "text_config": {
            "model_type": "llama", "vocab_size": 49280, "hidden_size": width,
            "num_hidden_layers": layers, "intermediate_size": inner, "num_attention_heads": 9,
            "num_key_value_heads": 3, "head_dim": width // 9, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5, "pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 49279,
        },
        "scale_factor": 4, "image_token_id": 49190, "pad_token_id": 2,
    }  # fmt: skip


FAMILIES: dict[str, Family] = {
    "whisper-tiny": Family("speech", _whisper(384, 4, 6), "times real time"),
    "whisper-base": Family("speech", _whisper(512, 6, 8), "times real time"),
    "t5-small": Family(
        "text",
        {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
        "tokens/s",
    ),
    "smolvlm-256m": Family(
        "picture", _smolvlm(512, (768, 12, 3072), (576, 30, 1536)), "first tokens/s"
    ),
}
# Sizes for a quick test instead of the family's own.
_SMALL = {
    "speech": _whisper(64, 1, 4),
    "text": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4},
    "picture": _smolvlm(128, (96, 1, 96), (72, 2, 96)),
}


def form_path(work: Path, family: str, form: str, *, small: bool) -> Path:
    """Returns the path of a family's format."""
    return work / (f"{family}-small" if small else family) / form


def _make_speech(sizes: dict[str, Any], target: Path) -> None:
    """Creates a multilingual Whisper with the vocabulary sizes of published ones."""
    import transformers
    from transformers.convert_slow_tokenizer import bytes_to_unicode
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    letters = list(bytes_to_unicode().values())
    words = letters + [f"word{number}" for number in range(50257 - len(letters))]
    vocabulary = {word: number for number, word in enumerate(words)}
    end = len(words)
    named = ["<|startoftranscript|>", *(f"<|{code}|>" for code in list(LANGUAGES)[:99])]
    named += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    named += ["<|nospeech|>", "<|notimestamps|>"]
    tokenizer = transformers.WhisperTokenizer(vocab=vocabulary | {"<|endoftext|>": end}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": named})
    tokenizer.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(1501)])
    tokenizer.save_pretrained(target)
    transformers.WhisperFeatureExtractor().save_pretrained(target)
    number = dict(zip(named, range(end + 1, end + 1 + len(named)), strict=True))
    start = number["<|startoftranscript|>"]
    ends = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end}
    config = transformers.WhisperConfig(
        **sizes, **ends, vocab_size=51865, decoder_start_token_id=start
    )
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        **ends,
        decoder_start_token_id=start,
        is_multilingual=True,
        lang_to_id={name: value for name, value in number.items() if len(name) in (6, 7)},
        task_to_id={name: number[f"<|{name}|>"] for name in ("transcribe", "translate")},
        no_timestamps_token_id=number["<|notimestamps|>"],
        max_length=448,
        # As many suppressed tokens as in published configs. Random weights may end at once: all
        # engines generate the requested number of tokens.
        suppress_tokens=[*range(1, 89), end],
        begin_suppress_tokens=[end],
    )
    model.save_pretrained(target)


def _make_text(sizes: dict[str, Any], target: Path) -> None:
    """Creates a T5 with a character tokenizer."""
    import transformers

    letters = [(letter, -2.0) for letter in "▁abcdefghijklmnopqrstuvwxyz:"]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *letters]
    transformers.T5Tokenizer(vocab=vocabulary, extra_ids=0).save_pretrained(target)
    config = transformers.T5Config(
        **sizes, vocab_size=32128, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(target)


def _make_picture(sizes: dict[str, Any], target: Path) -> None:
    """Creates an Idefics3 like SmolVLM, without a processor: images are preprocessed."""
    import transformers

    config = transformers.Idefics3Config(**sizes)
    transformers.Idefics3ForConditionalGeneration(config).save_pretrained(target)


_MAKERS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "speech": _make_speech,
    "text": _make_text,
    "picture": _make_picture,
}


def make_checkpoint(family: Family, target: Path, *, small: bool) -> None:
    """Writes a transformers checkpoint in float32."""
    import torch

    torch.manual_seed(0)
    _MAKERS[family.kind](_SMALL[family.kind] if small else family.sizes, target)


def make_openvino(family: Family, checkpoint: Path, target: Path) -> None:
    """Exports with optimum-intel in float32, with the tokenizer for OpenVINO GenAI."""
    import optimum.intel

    kinds = {"speech": "OVModelForSpeechSeq2Seq", "text": "OVModelForSeq2SeqLM"}
    kind: Any = getattr(optimum.intel, kinds[family.kind])
    exported = kind.from_pretrained(
        checkpoint, export=True, compile=False, dtype="float32", load_in_8bit=False
    )
    exported.save_pretrained(target)
    if family.kind == "text":
        return
    import openvino
    import openvino_tokenizers
    from transformers import AutoTokenizer

    for file in ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint / file, target)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    forward, back = openvino_tokenizers.convert_tokenizer(tokenizer, with_detokenizer=True)
    openvino.save_model(forward, target / "openvino_tokenizer.xml")
    openvino.save_model(back, target / "openvino_detokenizer.xml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("form", choices=("checkpoint", "openvino"))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    family = FAMILIES[options.family]
    target = form_path(options.work, options.family, options.form, small=options.small)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        if options.form == "checkpoint":
            make_checkpoint(family, draft, small=options.small)
        else:
            make_openvino(family, target.with_name("checkpoint"), draft)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


if __name__ == "__main__":
    main()
