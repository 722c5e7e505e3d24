"""Writes the page of GGUF architectures from npu-llm's table.

python tools/gguf_table.py [--page docs/reference/gguf.md]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from transformers import CONFIG_MAPPING

from npu_llm.gguf.architectures import ARCHITECTURES, REFUSED
from npu_llm.gguf.encoders import ENCODERS

ROOT = Path(__file__).parents[1]
WITNESS = ROOT / "packages/npu-llm/tests/gguf/witness.json"
HEADING = """# Supported GGUF architectures

Generated from npu-llm's table by `python tools/gguf_table.py --page docs/reference/gguf.md`.

The name of a file's architecture is its key `general.architecture`; `npu-llm info FILE` prints it.
*Equal* means that a tiny file with random weights produces llama.cpp's logits, or vectors, within
0.2 % of their range, and the same 32 greedy tokens; a test of each row compares them. The
comparison adopts two approximations of llama.cpp: a GELU table indexed by float16, and a divisor of
n - 1 in the deviation of Gemma 3n's activations. *Refused* means an error with the code
`gguf-architecture`, which gives the reason. Any other name is also refused.

A language model's GGUF file does not contain the parts for images and sounds: of a multimodal
model, only the text part runs. To extend the table, see [Add a
row](../contributing/adding-a-model.md#gguf-architectures).

| Architecture | Class of transformers | For | Verdict |
|---|---|---|---|
"""


def page() -> str:
    """Returns the page."""
    described = json.loads(WITNESS.read_text()).values()
    seen = {one["architecture"] for one in described}
    rows = []
    for name, row in ARCHITECTURES.items():
        plain, _, variant = name.partition("(")
        shown = f"`{plain}` with {variant.rstrip(')')}" if variant else f"`{plain}`"
        kind = CONFIG_MAPPING[row.model_type].__name__.removesuffix("Config")
        made_for = "vectors" if name in ENCODERS else "text"
        verdict = "equal" if plain in seen else "read; llama.cpp cannot run it for a comparison"
        rows.append((name, f"| {shown} | `{kind}` | {made_for} | {verdict} |"))
    for name, reason in REFUSED.items():
        rows.append((name, f"| `{name}` | | | refused: {reason} |"))
    return HEADING + "\n".join(line for _, line in sorted(rows)) + "\n"


def main(arguments: list[str]) -> None:
    """Prints the page, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    if options.page is None:
        print(page())
    else:
        options.page.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
