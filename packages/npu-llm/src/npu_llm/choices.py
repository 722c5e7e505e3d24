"""The names that a user chooses among, without torch: help and wrong options are said at once."""

from typing import Literal

__all__ = [
    "DEFAULT_PRECISION",
    "GROUP_SIZES",
    "KV_CACHES",
    "POOLINGS",
    "PRECISION_NAMES",
    "VERIFY",
    "KvCache",
    "PrecisionName",
    "Verify",
]

PrecisionName = Literal["float32", "bfloat16", "float16", "int8", "int4"]
PRECISION_NAMES: tuple[PrecisionName, ...] = ("float32", "bfloat16", "float16", "int8", "int4")
DEFAULT_PRECISION: PrecisionName = "bfloat16"
# What keys and values may be stored as, instead of the dtype of the arithmetic.
KvCache = Literal["u8"]
KV_CACHES: tuple[KvCache, ...] = ("u8",)
# Weights in int4 that share a scale.
GROUP_SIZES = (32, 64, 128)
# When programs are compared with torch.
Verify = Literal["first", "always", "off"]
VERIFY: tuple[Verify, ...] = ("first", "always", "off")
# How the vectors of a text's tokens become one.
POOLINGS = ("mean", "cls", "max", "last")
