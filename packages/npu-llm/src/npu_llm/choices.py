"""Option values, importable without torch so that --help and errors are fast."""

from typing import Literal, TypeVar

from npu_llm.errors import OptionError

__all__ = [
    "BLOB_CONTEXT",
    "DEFAULT_PRECISION",
    "DTYPE_HELP",
    "FLOATS_AND_INTEGERS",
    "GROUP_SIZES",
    "KV_CACHES",
    "PIPELINES",
    "POOLINGS",
    "PRECISION_NAMES",
    "TARGET_PRECISION",
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

_Name = TypeVar("_Name", bound=str)
PrecisionName = Literal["file", "float32", "bfloat16", "float16", "int8", "int4"]
# Precisions to which weights can be rounded.
FLOATS_AND_INTEGERS: tuple[PrecisionName, ...] = (
    "float32", "bfloat16", "float16", "int8", "int4",
)  # fmt: skip
PRECISION_NAMES: tuple[PrecisionName, ...] = ("file", *FLOATS_AND_INTEGERS)
# The default for checkpoints with float weights, and for programs that do not support blocks.
DEFAULT_PRECISION: PrecisionName = "bfloat16"
# The default context of the blobs in an export for NPUs.
BLOB_CONTEXT = 1024
# The fastest on NPUs by their compiler's estimates, with a perplexity within 3 % of float32's.
TARGET_PRECISION: PrecisionName = "int8"
DTYPE_HELP = (
    f"one of {', '.join(PRECISION_NAMES)}; file keeps each weight as the model's files have it "
    f"(default: file for GGUF files and quantized checkpoints, {DEFAULT_PRECISION} for others, "
    f"{TARGET_PRECISION} on an NPU, or that of an exported folder)"
)
# Storage types of keys and values, instead of the dtype of the arithmetic.
KvCache = Literal["u8"]
KV_CACHES: tuple[KvCache, ...] = ("u8",)
# Numbers of int4 weights that share a scale.
GROUP_SIZES = (32, 64, 128)
# Options for comparing programs with torch.
Verify = Literal["first", "always", "off"]
VERIFY: tuple[Verify, ...] = ("first", "always", "off")
# Methods of pooling the tokens' vectors.
POOLINGS = ("mean", "cls", "max", "last")
# Execution modes of a model's steps, see npu_llm.models.load.
PipelineName = Literal["kernels", "dynamic", "static"]
PIPELINES: tuple[PipelineName, ...] = ("kernels", "dynamic", "static")


def choose_pipeline(name: str | None, device: str) -> PipelineName:
    """Returns the requested pipeline, or the one that suits a device.

    Args:
        name: "kernels", "dynamic" or "static"; None or "auto" to choose by the device.
        device: OpenVINO's name of the device.

    Raises:
        OptionError: [unknown-pipeline] for another name, [npu-dynamic] for "dynamic" on an NPU.
    """
    asked = parse_pipeline(name)
    is_npu = device.startswith("NPU")
    if asked == "dynamic" and is_npu:
        raise OptionError(
            "`pipeline` must be one that an NPU can run, which needs programs of fixed sizes "
            'without state, got "dynamic". Omit it, or export the folder again here, for the '
            "static pipeline; NPU_DEVICE=CPU runs the dynamic one.",
            code="npu-dynamic",
        )
    if asked is not None:
        return asked
    if is_npu:
        return "static"
    return "kernels" if device.startswith("CPU") else "dynamic"


def check_group_size(size: object) -> None:
    """Raises OptionError [group-size] for an unsupported number of weights per scale."""
    if size is not None and size not in GROUP_SIZES:
        raise OptionError(
            f"`group_size` must be one of {', '.join(map(str, GROUP_SIZES))}, got {size!r}. Omit "
            "it for the pipeline's default.",
            code="group-size",
        )


def parse_dtype(dtype: object) -> PrecisionName | None:
    """Returns the name of the requested precision; None to choose by the model.

    Args:
        dtype: a name of PRECISION_NAMES, or None or "auto".

    Raises:
        OptionError: [unknown-dtype] for anything else, listing the choices.
    """
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return None
    return _chosen(
        dtype,
        PRECISION_NAMES,
        rule=f"`dtype` must be one of {', '.join(PRECISION_NAMES)}",
        step="Pass one of these names, or torch.float32, torch.bfloat16, torch.float16 or "
        "torch.int8.",
        code="unknown-dtype",
    )


def parse_kv_cache(kv_cache: str | None) -> KvCache | None:
    """Returns the storage type of keys and values; None for the dtype of the arithmetic.

    Args:
        kv_cache: the user's value: a name of KV_CACHES, or None or "auto".

    Raises:
        OptionError: [unknown-kv-cache] for anything else.
    """
    if kv_cache in (None, "auto"):
        return None
    return _chosen(
        kv_cache,
        KV_CACHES,
        rule=f'`kv_cache` must be "auto" or one of {", ".join(KV_CACHES)}',
        step="Omit it to keep keys and values in the precision of the arithmetic.",
        code="unknown-kv-cache",
    )


def parse_pipeline(name: str | None) -> PipelineName | None:
    """Returns the requested pipeline; None to choose by the device.

    Args:
        name: "kernels", "dynamic" or "static"; None or "auto".

    Raises:
        OptionError: [unknown-pipeline] for another name.
    """
    if name in (None, "auto"):
        return None
    return _chosen(
        name,
        PIPELINES,
        rule='`pipeline` must be "auto", "kernels", "dynamic" or "static"',
        step="Choose one of these.",
        code="unknown-pipeline",
    )


def parse_verify(verify: str) -> Verify:
    """Returns the validated option for comparing programs with torch.

    Args:
        verify: the user's value.

    Raises:
        OptionError: [unknown-verify] for anything but "first", "always" and "off".
    """
    return _chosen(
        verify,
        VERIFY,
        rule=f"`verify` must be one of {', '.join(VERIFY)}",
        step="Omit it to compare programs with torch when they are built.",
        code="unknown-verify",
    )


def _chosen(value: object, names: tuple[_Name, ...], *, rule: str, step: str, code: str) -> _Name:
    """Returns the name that matches a value; raises OptionError for an unknown one."""
    for name in names:
        if isinstance(value, str) and value == name:
            return name
    raise OptionError(f"{rule}, got {value!r}. {step}", code=code)
