"""`npu-profiler mlp`: measures a decoder layer's MLP over sizes and dtypes."""

from collections.abc import Sequence

from npu_profiler.commands.sweep import SweepCommand, run_sweep

__all__ = ["main"]

_COMMAND = SweepCommand(
    name="mlp",
    description="Measures down(silu(gate(x)) * up(x)), the MLP of a decoder layer, on the "
    "device; x is (ROWS, HIDDEN), and gate and up widen it to INNER.",
    sizes=("ROWS", "HIDDEN", "INNER"),
    default="1x1024x4096,32x1024x4096,256x1024x4096",
    is_square=False,
)


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0, or 1 when nothing ran."""
    return run_sweep(_COMMAND, words)
