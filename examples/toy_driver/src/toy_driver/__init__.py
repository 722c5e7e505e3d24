"""The path of the toy driver's library, and the programs of its conformance test.

The driver itself is native (csrc/toy_driver.cpp); csrc/toy_program.h documents its program format.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_runtime.driver_conformance import ProgramSet

__all__ = ["conformance_programs", "library"]


# --8<-- [start:library]
def library() -> Path:
    """Path of the shared library that exports ``npu_driver_table``."""
    return Path(__file__).with_name("libtoy_driver.so")


# --8<-- [end:library]


# --8<-- [start:programs]
def conformance_programs() -> ProgramSet:
    """Returns the programs of ``python -m npu_runtime.driver_conformance --driver toy``."""
    # Imported here: torch looks for drivers while npu_runtime itself is being imported.
    from npu_runtime.driver_conformance import ProgramSet, ProgramText

    return ProgramSet(
        add_one=ProgramText(
            b"input x 64\nweights one 1\ny = add x one\noutput y\n", struct.pack("<f", 1)
        ),
        two_ports=ProgramText(
            b"input x 2x3\ninput y 2x3\nweights one 1\nweights two 1\n"
            b"a = add x one\nb = mul y two\noutput a\noutput b\n",
            struct.pack("<2f", 1, 2),
        ),
        dynamic_sum=ProgramText(b"input x ?\ninput y ?\nz = add x y\noutput z\n"),
        counter=ProgramText(
            b"input x 2\nvariable sum 2\ntotal = add sum x\nstore sum total\noutput total\n"
        ),
        layer_options={"PERF_COUNT": "YES"},
        model_suffix=".toy",
        weights_suffix=".bin",
    )


# --8<-- [end:programs]
