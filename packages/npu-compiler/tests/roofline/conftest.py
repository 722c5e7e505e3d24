"""A generation of round figures, by which bounds can be computed in one's head."""

import pytest

from npu_compiler.roofline.bound import Figure, Generation


@pytest.fixture
def round_figures() -> Generation:
    """1,000 products of 8 bits and 500 of float16, and 100 bytes, each in a microsecond."""
    values = {
        "tiles": 2,
        "macs_per_tile": 5,
        "half_ratio": 2,
        "frequency_mhz": 100,
        "bandwidth_gbps": 0.1,
    }
    figures = {name: Figure(value, "made up", "2026") for name, value in values.items()}
    return Generation(name="0", chip="Made Up", **figures)
