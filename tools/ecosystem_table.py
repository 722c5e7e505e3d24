"""Writes the page of library versions that passed `nox -s ecosystem`.

    python tools/ecosystem_table.py docs/reference/ecosystem.md

Run it in the environment of that session, after its tests.
"""

import sys
from importlib.metadata import version
from pathlib import Path

__all__ = ["SHOWN", "page"]

SHOWN = {
    "transformers": "`Trainer` (bfloat16, float16, checkpointing of gradients, accumulation, "
    "resuming, evaluation, compiled), pipelines, device maps, offloaded caches, `tp_plan`",
    "accelerate": "a custom training loop, `accelerate launch`, FSDP2, states saved and loaded, "
    "`accelerate env`",
    "peft": "the device of adapters",
    "trl": "SFT and DPO, offloaded activations",
    "datasets": "the rows of trl's trainers",
    "sentence-transformers": "the device chosen, vectors",
    "diffusers": "a U-Net eagerly, compiled, and with `AttnProcessorNPU`",
    "lightning": "`Trainer` and `Fabric`: precisions, checkpoints, two processes",
    "ray": "Ray Train with two workers",
    "torchao": "weights in int8, eagerly and compiled",
}
"""Features that the tests use, by the name of the library's distribution."""

_START = """# Tested libraries

These were the newest releases at the last run of `nox -s ecosystem`, which writes this page if all
its tests pass. The guides show how to use the libraries: [Hugging Face](../guides/hugging-face.md),
[Lightning](../guides/lightning.md) and [several processes](../guides/distributed.md).

| Library | Version | What the tests run on `npu` |
|---|---|---|
"""
_END = """
Not tested: timm and torchvision, because their wheels on PyPI require a CUDA build of torch;
[Install](../get-started/install.md) lists the matching torchvision. Composer (`mosaicml`) requires
a torch below 2.7.1.
"""


def page() -> str:
    """Returns the page, with the installed versions."""
    names = {"torch": "all of them", **SHOWN}
    rows = [f"| {name} | {version(name)} | {shown} |" for name, shown in names.items()]
    return _START + "\n".join(rows) + "\n" + _END


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
