"""What a program is made for: the device's compiler, or our own kernels on the host's cores.

On OpenVINO's CPU plugin both run on the same cores, and a call of OpenVINO's program costs more
than a call of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_compiler.options import CompilerConfig

__all__ = ["CAPTURED", "ProgramFacts", "TargetChoice", "choose_target", "is_for_npu"]

CAPTURED = "a captured graph holds programs of the device, not host code"

# Where kernels are known to win: they did in every case from 1 row of width 16 to 16 rows of width
# 1,024, on two Zen 3 cores, 2026-11-23 (packages/npu-compiler/benchmarks/small_graphs.py). The
# bounds leave room for processors on which the device's compiler is better.
_MOST_ROWS = 8
_MOST_MULTIPLICATIONS = 1 << 22
# Below this the calling thread is done before others are awake.
_MOST_MULTIPLICATIONS_ALONE = 1 << 18


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """What the choice is made by.

    Attributes:
        device: OpenVINO's name for the device.
        kind: of the graph: inference, forward or backward.
        precision: in which the program is to compute.
        rows: of its tensors; None where sizes vary.
        multiplications: of its products.
        refusal: why kernels are out of question for this graph; None if they are not.
    """

    device: str
    kind: str
    precision: str
    rows: int | None
    multiplications: int
    refusal: str | None = None


@dataclass(frozen=True)
class TargetChoice:
    """What a program is made for.

    Attributes:
        target: "openvino" or "kernels".
        reason: why.
        is_alone: whether the calling thread is to run the kernels alone.
    """

    target: str
    reason: str
    is_alone: bool = False


def choose_target(facts: ProgramFacts, config: CompilerConfig) -> TargetChoice:
    """Chooses what a program is made for."""
    reason = _obstacle(facts, config)
    if reason is not None:
        return TargetChoice("openvino", reason)
    rows = facts.rows
    assert rows is not None
    work = f"{_count(rows, 'row')}, {_count(facts.multiplications, 'multiplication')}"
    is_alone = facts.multiplications <= _MOST_MULTIPLICATIONS_ALONE
    if config.target == "kernels":
        return TargetChoice("kernels", f"as asked for: {work}", is_alone)
    if rows > _MOST_ROWS or facts.multiplications > _MOST_MULTIPLICATIONS:
        return TargetChoice("openvino", f"much work: {work}")
    return TargetChoice("kernels", f"little work: {work}", is_alone)


def is_for_npu(config: CompilerConfig, device: str) -> bool:
    """Whether programs are to hold only what the NPU's compiler takes.

    Args:
        config: see CompilerConfig.
        device: OpenVINO's name of it.
    """
    return config.target == "NPU" or (config.target is None and device.startswith("NPU"))


def _obstacle(facts: ProgramFacts, config: CompilerConfig) -> str | None:
    if facts.refusal is not None:
        return facts.refusal
    if config.target == "openvino":
        return "as asked for"
    if config.target == "NPU":
        return "what an NPU takes, as asked for"
    if not facts.device.startswith("CPU"):
        return f"the device is {facts.device}, not the host's cores"
    if facts.kind != "inference":
        return "a graph for training"
    if config.compression is not None:
        return "weights are compressed"
    if config.device_options:
        return "device_options are for OpenVINO"
    if facts.precision != "float32":
        return f"computes in {facts.precision}"
    if facts.rows is None:
        return "sizes vary"
    return None if facts.rows else "has no rows"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
