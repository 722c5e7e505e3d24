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
    "accelerate": "a loop of one's own, `accelerate launch`, FSDP2, states saved and loaded, "
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
"""What the tests run of each library, by the name of its distribution."""

_START = """# Tested libraries

The newest releases on the day of the last run of `nox -s ecosystem`, which writes this page when
all of its tests passed. How the libraries are used is in the guides for
[Hugging Face's](../guides/hugging-face.md), for [Lightning](../guides/lightning.md) and for
[several processes](../guides/distributed.md).

| Library | Version | What the tests run on `npu` |
|---|---|---|
"""
_END = """
Not among them: timm and torchvision, whose wheels on PyPI belong to a build of torch for CUDA;
[Install](../get-started/install.md) says which torchvision fits. Composer (`mosaicml`) asks for a
torch below 2.7.1.
"""


def page() -> str:
    """Returns the page, with the installed versions."""
    names = {"torch": "all of them", **SHOWN}
    rows = [f"| {name} | {version(name)} | {shown} |" for name, shown in names.items()]
    return _START + "\n".join(rows) + "\n" + _END


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
