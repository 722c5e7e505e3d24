"""Training on npu against the CPU: ResNet-50, BERT and GPT-2 at full size, step by step in turn.

    python packages/npu-ops/benchmarks/training.py [--only resnet] [--steps 50] [--clock wall]

Both devices start from the same random weights and see the same batches. Printed per model: the
largest relative difference of the losses, and the time of a step. The first two steps, in which
memory is mapped for the first time, are left out of the times. Small models are compared by
tests/test_training.py.
"""

import argparse
import copy
import json
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from _timing import CLOCKS
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)

Batch = dict[str, torch.Tensor]

WARM_UP = 2


def resnet() -> tuple[torch.nn.Module, Callable[[], Batch]]:
    """ResNet-50: 25.6 million parameters, two images of 224 x 224."""

    def batch() -> Batch:
        return {"pixel_values": torch.randn(2, 3, 224, 224), "labels": torch.randint(0, 10, (2,))}

    return ResNetForImageClassification(ResNetConfig(num_labels=10)), batch


def bert() -> tuple[torch.nn.Module, Callable[[], Batch]]:
    """BERT base: 109 million parameters, two rows of 64 tokens."""

    def batch() -> Batch:
        tokens = torch.randint(0, 30522, (2, 64))
        return {"input_ids": tokens, "labels": tokens[:, 0] % 2}

    return BertForSequenceClassification(BertConfig()), batch


def gpt2() -> tuple[torch.nn.Module, Callable[[], Batch]]:
    """GPT-2 small: 124 million parameters, two rows of 64 tokens."""

    def batch() -> Batch:
        tokens = torch.randint(0, 50257, (2, 64))
        return {"input_ids": tokens, "labels": tokens}

    return GPT2LMHeadModel(GPT2Config()), batch


@dataclass(frozen=True)
class Found:
    """One model's comparison. ``ratio`` is the median of npu : cpu over steps, with quartiles."""

    steps: int
    first_loss: float
    last_loss: float
    loss_difference: float
    cpu_ms: float
    npu_ms: float
    ratio: float
    low: float
    high: float


class Trainer:
    """A model with its optimizer on one device."""

    def __init__(self, model: torch.nn.Module, device: str, clock: Callable[[], int]) -> None:
        self.device = device
        self.clock = clock
        self.model = copy.deepcopy(model).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, batch: Batch) -> None:
        """One step, with its loss and time."""
        start = self.clock()
        loss = self.model(**{name: value.to(self.device) for name, value in batch.items()}).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.seconds.append((self.clock() - start) / 1e9)


def compare(
    make: Callable[[], tuple[torch.nn.Module, Callable[[], Batch]]],
    steps: int,
    clock: Callable[[], int],
) -> Found:
    """Trains on both devices in turn; the one that goes first changes every step."""
    torch.manual_seed(0)
    model, batch_of = make()
    host, there = Trainer(model, "cpu", clock), Trainer(model, "npu", clock)
    batches = [batch_of() for _ in range(steps)]
    torch.manual_seed(1)  # both generators; each device draws its dropout from its own
    for index, batch in enumerate(batches):
        for trainer in (host, there) if index % 2 else (there, host):
            trainer.step(batch)
    ratios = [npu / cpu for cpu, npu in zip(host.seconds, there.seconds, strict=True)][WARM_UP:]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Found(
        steps=steps,
        first_loss=host.losses[0],
        last_loss=host.losses[-1],
        loss_difference=max(
            abs(npu - cpu) / abs(cpu) for cpu, npu in zip(host.losses, there.losses, strict=True)
        ),
        cpu_ms=statistics.median(host.seconds[WARM_UP:]) * 1000,
        npu_ms=statistics.median(there.seconds[WARM_UP:]) * 1000,
        ratio=statistics.median(ratios),
        low=low,
        high=high,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    models = {"resnet": resnet, "bert": bert, "gpt2": gpt2}
    parser.add_argument("--only", choices=models, help="one of the models")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: for one thread on a busy machine"
    )
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = {}
    for name, make in models.items():
        if args.only not in (None, name):
            continue
        load = os.getloadavg()[0]
        found = compare(make, args.steps, CLOCKS[args.clock])
        results[name] = asdict(found) | {"load": load}
        if not args.json:
            print(
                f"{name}: {found.steps} steps, loss {found.first_loss:.4f} to "
                f"{found.last_loss:.4f}, largest relative difference {found.loss_difference:.1e}; "
                f"cpu {found.cpu_ms:.0f} ms, npu {found.npu_ms:.0f} ms, npu : cpu "
                f"{found.ratio:.2f} ({found.low:.2f}..{found.high:.2f}), "
                f"{args.threads} threads, {args.clock} time, load {load:.1f}"
            )
    if args.json:
        print(json.dumps({"threads": args.threads, "models": results}))


if __name__ == "__main__":
    main()
