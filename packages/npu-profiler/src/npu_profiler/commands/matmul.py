"""`npu-profiler matmul`: measures products over sizes and dtypes, eager and compiled."""

from collections.abc import Sequence

from npu_profiler.commands.sweep import SweepCommand, run_sweep

__all__ = ["main"]

_COMMAND = SweepCommand(
    name="matmul",
    description="Measures matrix products, (M, K) with (K, N), on the device.",
    sizes=("M", "K", "N"),
    default="256,512,1024,2048",
    is_square=True,
)


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0, or 1 when nothing ran."""
    return run_sweep(_COMMAND, words)
