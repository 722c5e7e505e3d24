"""Writes docs/reference/torch-npu.md: the state of each public name of torch_npu's `torch.npu`.

    python tools/pages/torch_npu.py

The names are a file of npu-runtime's tests. tests/test_torch_npu_page.py compares the page with the
modules.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import torch

import npu_runtime  # noqa: F401  (torch.npu)
from npu_runtime.npu.absent import ABSENT

__all__ = ["PAGE", "main", "page"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/torch-npu.md"
NAMES = ROOT / "packages/npu-runtime/tests/npu/torch_npu_names.txt"
# Names without a docstring for their users.
_OF_TORCH = {
    "Event": "An event of a stream, as `torch.Event`.",
    "Stream": "A stream of programs, as `torch.Stream`.",
}
_HEADING = """# Names of torch_npu

Each public name of `torch.npu` in Huawei's torch_npu (`torch_npu.npu.__all__`, master branch of
November 2026) works here, or raises `AttributeError` with a reason: {here} of {count} names work.
Names of `torch.cuda` work in the same way; see [Move from CUDA](../guides/moving-from-cuda.md).
`python tools/pages/torch_npu.py` writes this page.
"""


def page() -> str:
    """The text of the page."""
    names = NAMES.read_text().split()
    here = {name: _summary(name) for name in names if name not in ABSENT}
    reasons = {
        name: f"{ABSENT[name][0].upper()}{ABSENT[name][1:]}." for name in names if name in ABSENT
    }
    return "\n".join(
        [
            _HEADING.format(here=len(here), count=len(names)),
            "## Names that work",
            "",
            *_table("In this platform", here),
            "",
            "## Names without a counterpart",
            "",
            *_table("Reason and alternative", reasons),
            "",
        ]
    )


def _summary(name: str) -> str:
    value = getattr(torch.npu, name)
    if name in _OF_TORCH:
        return _OF_TORCH[name]
    if name.endswith("Tensor"):
        return f"Creates a tensor of {value.dtype} on `npu`, and is its type for `isinstance`."
    first = (inspect.getdoc(value) or "").partition("\n")[0]
    return re.sub(r"(?::\w+:)?`{1,2}([^`]+)`{1,2}", r"`\1`", first)


def _table(title: str, rows: dict[str, str]) -> list[str]:
    cells = (f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows.items())
    return [f"| Name | {title} |", "|---|---|", *cells]


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
