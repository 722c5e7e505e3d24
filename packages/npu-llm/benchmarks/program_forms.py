"""Prints an NPU compiler's estimates of models' static programs: time, size and seconds to compile.

    python packages/npu-llm/benchmarks/program_forms.py MODEL [MODEL ...] --target 4000 --dtype int8

MODEL is a checkpoint's folder or file, or the name of a shape below, which gets random weights.
Nothing is measured on an NPU, and none is needed; `npu-compiler target install` installs the
compiler.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from npu_compiler.target_compiler import TARGETS, target_compiler
from npu_compiler.target_compiler.report import ESTIMATE_NOTE
from npu_llm.choices import TARGET_PRECISION
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.readiness import static_programs

_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "SmolLM2-135M": (
        "LlamaConfig",
        {
            "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "max_position_embeddings": 8192, "tie_word_embeddings": True,
        },
    ),
    "TinyLlama-1.1B": (
        "LlamaConfig",
        {
            "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
            "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
            "max_position_embeddings": 2048, "tie_word_embeddings": False,
        },
    ),
    "Qwen3-0.6B": (
        "Qwen3Config",
        {
            "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 128, "max_position_embeddings": 40960, "tie_word_embeddings": True,
        },
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help=f"or one of {list(_SHAPES)}")
    parser.add_argument("--target", action="append", help="may be repeated (default: all known)")
    parser.add_argument("--dtype", default=TARGET_PRECISION)
    options = parser.parse_args()
    targets = options.target or [target.number for target in TARGETS[:3]]
    print(f"| Model, {options.dtype} | Program | NPU | Estimate | Blob | Compiled in |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="npu-forms-") as place, target_compiler() as compiler:
        load = LoadOptions(dtype=options.dtype, cache_dir=Path(place, "entries"))
        for name in options.models:
            model = name if name not in _SHAPES else _make(name, Path(place, name))
            for target in targets:
                for program in static_programs(model, load, target=target):
                    found = compiler.compile(program.model, target, program.options)
                    time = f"refused: {found.reason}"
                    if found.estimate is not None:
                        time = f"{found.estimate.latency_ms:.2f} ms"
                    print(
                        f"| {Path(name).name} | {program.name.partition(', ')[2]} | {target}"
                        f" | {time} | {found.blob_bytes / 1e6:.1f} MB | {found.duration_s:.0f} s |",
                        flush=True,
                    )
    print(f"\nTimes are {ESTIMATE_NOTE}.")


def _make(name: str, folder: Path) -> Path:
    """Writes a model of a known shape with random weights."""
    import torch
    import transformers

    kind, sizes = _SHAPES[name]
    config = getattr(transformers, kind)(**sizes)
    torch.manual_seed(0)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.normal_(std=0.02)
    model.tie_weights()
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
