"""Judges small classifiers, trained on generated images, in float16 and int8 on the simulator.

`python judge_int8.py -o FILE`: MobileNet V2 and ResNet of transformers, ten classes of stripes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import (
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from npu_compiler.exported.capture import capture_module
from npu_compiler.exported.vendor_graphs import graph_program
from npu_compiler.options import CompilerConfig
from npu_compiler.target_compiler import find_target, vendor_of

_CLASSES, _SIZE, _TRAIN, _IMAGES, _CALIBRATION = 10, 32, 1500, 200, 50


def images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns noisy images of stripes, and their classes: one per angle and colour."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, _CLASSES, (count,), generator=generator)
    axis = torch.linspace(-1, 1, _SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    angle = labels.float()[:, None, None] * torch.pi / _CLASSES
    phase = 6.28 * torch.rand((count, 1, 1), generator=generator)
    stripes = torch.sin(8 * (x * torch.cos(angle) + y * torch.sin(angle)) + phase)
    colour = 0.5 + 0.5 * torch.rand((count, 3, 1, 1), generator=generator)
    noise = 0.8 * torch.randn((count, 3, _SIZE, _SIZE), generator=generator)
    return stripes[:, None] * colour + noise, labels


def train(model: torch.nn.Module) -> torch.nn.Module:
    """Trains on generated images for some epochs."""
    torch.manual_seed(0)
    inputs, labels = images(_TRAIN, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(6):
        for part in torch.randperm(_TRAIN).split(50):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs[part]).logits, labels[part])
            loss.backward()
            optimizer.step()
    return model.eval()


class _Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values).logits


def judge(name: str, model: torch.nn.Module, target_name: str) -> list[str]:
    """Returns the row of a model: accuracies, and how often int8 has float32's class."""
    target = find_target(target_name, graphs=True)
    module = _Logits(train(model)).eval()
    inputs, labels = images(_IMAGES, 2)
    calibration = [(image[None],) for image in images(_CALIBRATION, 3)[0]]
    config = CompilerConfig(target=target.number)
    captured = capture_module(module, (inputs[:1],), {}, {}, config)
    with torch.no_grad():
        found = {"float32": module(inputs).argmax(-1)}
    for kind, calls in (("float16", None), ("int8", calibration)):
        made = vendor_of(target).compile(graph_program(f"{name}, {kind}", captured, calls), target)
        if made.run is None:
            raise SystemExit(f"{name}, {kind}: {made.report.reason}")
        found[kind] = torch.cat([made.run([image[None]])[0] for image in inputs]).argmax(-1)
    rates = [f"{(found[kind] == labels).float().mean():.1%}" for kind in found]
    return [name, *rates, f"{(found['int8'] == found['float32']).float().mean():.1%}"]


def main() -> None:
    """Writes the rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="rk3588")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    torch.manual_seed(0)
    resnet = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64], depths=[1, 1, 1], layer_type="basic",
        num_labels=_CLASSES, downsample_in_first_stage=False,
    )  # fmt: skip
    mobilenet = MobileNetV2Config(num_labels=_CLASSES, depth_multiplier=0.35, image_size=_SIZE)
    rows = [
        judge("ResNet, basic blocks", ResNetForImageClassification(resnet), given.target),
        judge("MobileNet V2, 0.35", MobileNetV2ForImageClassification(mobilenet), given.target),
    ]
    sizes = {"images": _IMAGES, "train": _TRAIN, "calibration": _CALIBRATION}
    given.output.write_text(json.dumps({**sizes, "rows": rows}))


if __name__ == "__main__":
    main()
