"""The names that a user chooses among, without torch: help and wrong options are said at once."""

from typing import Literal

from npu_llm.errors import OptionError

__all__ = [
    "DEFAULT_PRECISION",
    "GROUP_SIZES",
    "KV_CACHES",
    "PIPELINES",
    "POOLINGS",
    "PRECISION_NAMES",
    "VERIFY",
    "KvCache",
    "PipelineName",
    "PrecisionName",
    "Verify",
    "check_group_size",
    "choose_pipeline",
    "parse_dtype",
    "parse_kv_cache",
    "parse_pipeline",
    "parse_verify",
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
# How a model's steps run, see npu_llm.steps.pipelines.
PipelineName = Literal["kernels", "dynamic", "static"]
PIPELINES: tuple[PipelineName, ...] = ("kernels", "dynamic", "static")


def choose_pipeline(name: str | None, device: str) -> PipelineName:
    """Returns the pipeline that a user asked for, or the one that suits a device.

    Args:
        name: "kernels", "dynamic" or "static"; None or "auto" to choose by the device.
        device: OpenVINO's name for the device.

    Raises:
        OptionError: [unknown-pipeline] for another name.
    """
    asked = parse_pipeline(name)
    if asked is not None:
        return asked
    if device.startswith("NPU"):
        return "static"
    return "kernels" if device.startswith("CPU") else "dynamic"


def check_group_size(size: object) -> None:
    """Raises OptionError [group-size] for a number of weights that cannot share a scale."""
    if size not in GROUP_SIZES:
        raise OptionError(
            f"group_size: must be one of {', '.join(map(str, GROUP_SIZES))}; got {size!r}. Omit it "
            "for 64.",
            code="group-size",
        )


def parse_dtype(dtype: object) -> PrecisionName:
    """Returns the name of the precision that a user asked for.

    Args:
        dtype: a name of PRECISION_NAMES, or None or "auto" for the default.

    Raises:
        OptionError: [unknown-dtype] for anything else, listing the choices.
    """
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return DEFAULT_PRECISION
    for known in PRECISION_NAMES:
        if isinstance(dtype, str) and dtype == known:
            return known
    raise OptionError(
        f"dtype: must be one of {', '.join(PRECISION_NAMES)}; got {dtype!r}. Pass one of these "
        "names, or torch.float32, torch.bfloat16, torch.float16 or torch.int8.",
        code="unknown-dtype",
    )


def parse_kv_cache(kv_cache: str | None) -> KvCache | None:
    """Returns what keys and values are to be stored as; None for the dtype of the arithmetic.

    Args:
        kv_cache: what a user passed: a name of KV_CACHES, or None or "auto".

    Raises:
        OptionError: [unknown-kv-cache] for anything else.
    """
    if kv_cache in (None, "auto"):
        return None
    for known in KV_CACHES:
        if kv_cache == known:
            return known
    raise OptionError(
        f'kv_cache: must be "auto" or one of {", ".join(KV_CACHES)}; got {kv_cache!r}. Omit it '
        "to keep keys and values in the precision of the arithmetic.",
        code="unknown-kv-cache",
    )


def parse_pipeline(name: str | None) -> PipelineName | None:
    """Returns the pipeline that a user asked for; None to choose by the device.

    Args:
        name: "kernels", "dynamic" or "static"; None or "auto".

    Raises:
        OptionError: [unknown-pipeline] for another name.
    """
    if name in (None, "auto"):
        return None
    for known in PIPELINES:
        if name == known:
            return known
    raise OptionError(
        f'pipeline: must be "auto", "kernels", "dynamic" or "static"; got {name!r}. Choose one '
        "of these.",
        code="unknown-pipeline",
    )


def parse_verify(verify: str) -> Verify:
    """Returns when programs are compared with torch.

    Args:
        verify: what a user passed.

    Raises:
        OptionError: [unknown-verify] for anything but "first", "always" and "off".
    """
    for known in VERIFY:
        if verify == known:
            return known
    raise OptionError(
        f"verify: must be one of {', '.join(VERIFY)}; got {verify!r}. Omit it to compare "
        "programs with torch when they are built.",
        code="unknown-verify",
    )
