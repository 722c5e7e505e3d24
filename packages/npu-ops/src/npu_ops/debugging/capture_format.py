"""Format of a captured call: a folder with `call.json` and `tensors.safetensors`.

`call.json` holds the op, its call site, and its arguments before and after the call as trees, in
which each tensor is a line that names its bytes in the other file. A folder contains no code.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.capture_folders import CALL
from npu_ops.debugging.trial import GeneratorImage, Snapshot, StorageImage, TensorImage
from npu_ops.errors import OperatorInputError
from npu_ops.seal import check_file, damaged, digest, read_sealed, seal
from npu_runtime.public_calls import public_call

__all__ = [
    "Capture",
    "capture_size",
    "is_writable",
    "load_capture",
    "save_capture",
]

_FORMAT = 2
_UNSEALED = 1  # the format before captures had checksums
_SEAL_BYTES = 256  # maximum size of the text
_PAGE = 4096  # bytes, of the usual file systems
_TENSORS = "tensors.safetensors"
# Dtypes that safetensors lacks are stored as bytes.
_TYPED = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)
# Values written by name: JSON key -> type.
_NAMED = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_WRITABLE = (
    *(TensorImage, GeneratorImage, bool, int, float, complex, str, torch.device),
    *_NAMED.values(),
)


@dataclass(frozen=True)
class Capture:
    """A call, complete for a replay.

    Attributes:
        op: its exact name, such as `aten.add.Tensor`.
        facts: the call's number, phase, node, sequence, line and signature.
        before: `(args, kwargs)` before it.
        after: `(results, args, kwargs)` after it.
        state: the device's random state before the call; None if the call draws no random numbers.
        note: the reason for the capture, such as the difference.
        has_checksum: whether damaged files can be detected; False for captures of earlier versions.
    """

    op: str
    facts: Mapping[str, Any]
    before: Snapshot
    after: Snapshot
    state: torch.Tensor | None
    note: str = ""
    has_checksum: bool = True


@public_call
def capture_size(capture: Capture) -> int:
    """Returns the maximum size of a capture on disk in bytes, in whole pages."""
    tensors = _tensors(capture)
    data = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
    header = 16 + 200 * len(tensors)
    return _PAGE + _pages(data + header) + _pages(len(_text(_document(capture))) + _SEAL_BYTES)


@public_call
def is_writable(capture: Capture) -> bool:
    """Whether all tensors are strided and all other values plain."""
    return all(
        leaf is None or isinstance(leaf, _WRITABLE)
        for leaf in tree_leaves((capture.before.tree, capture.after.tree))
    )


@public_call
def save_capture(capture: Capture, folder: Path) -> int:
    """Writes a capture atomically.

    Returns:
        The bytes written.
    """
    folder = folder.absolute()
    made = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    data = safetensors.torch.save(_tensors(capture))
    (made / _TENSORS).write_bytes(data)
    document = seal(_document(capture), {_TENSORS: digest(data)})
    (made / CALL).write_text(_text(document), encoding="utf-8")
    written = _PAGE + sum(_pages(file.stat().st_size) for file in made.iterdir())
    made.rename(folder)
    return written


@public_call
def load_capture(folder: str | Path) -> Capture:
    """Reads a capture.

    Raises:
        OperatorInputError: [capture-unreadable] for a folder without a capture.
        DamagedFileError: [file-damaged] for files that changed since.
    """
    folder = Path(folder)
    try:
        document, is_sealed = read_sealed(folder / CALL)
        if document["format"] not in (_UNSEALED, _FORMAT):
            raise ValueError(f"format {document['format']}, and this version reads {_FORMAT}")
        data = (folder / _TENSORS).read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(folder, error) from error
    if is_sealed:
        check_file(document, folder / _TENSORS, data)
    elif document["format"] != _UNSEALED:
        raise damaged(folder / CALL, "its checksum is missing")
    try:
        tensors = safetensors.torch.load(data)
        return Capture(
            op=document["op"],
            facts={key: document[key] for key in document["facts"]},
            before=_load_snapshot(document["before"], tensors),
            after=_load_snapshot(document["after"], tensors),
            state=tensors.get("state"),
            note=document["note"],
            has_checksum=is_sealed,
        )
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> OperatorInputError:
    return OperatorInputError(
        f"`{folder}` must be the folder of a captured call, with {CALL} and {_TENSORS}; "
        f"{type(error).__name__}: {error}. Capture it again with npu-ops run --capture.",
        code="capture-unreadable",
    )


def _tensors(capture: Capture) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, snapshot in (("before", capture.before), ("after", capture.after)):
        for number, storage in enumerate(snapshot.storages):
            if name == "after" and _same(capture, storage) is not None:
                continue
            found[f"{name}.{number}"] = _typed(storage.data, snapshot.dtypes[number])
        generators = [x for x in tree_leaves(snapshot.tree) if isinstance(x, GeneratorImage)]
        for number, image in enumerate(generators):
            found[f"{name}.generator.{number}"] = image.state
    if capture.state is not None:
        found["state"] = capture.state
    return {name: tensor.clone() for name, tensor in found.items()}


def _typed(data: torch.Tensor, dtypes: frozenset[torch.dtype]) -> torch.Tensor:
    """Views bytes as the only dtype that reads them, so that the file is readable."""
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else None
    if dtype not in _TYPED or data.numel() % dtype.itemsize:
        return data
    return data.view(dtype)


def _same(capture: Capture, after: StorageImage) -> int | None:
    """Returns the number of the storage before the call with the same bytes."""
    for number, before in enumerate(capture.before.storages):
        is_it = after.original is not None and before.original is not None
        if (
            is_it
            and after.original._cdata == before.original._cdata  # type: ignore[union-attr]
            and after.start == before.start
            and after.data.equal(before.data)
        ):
            return number
    return None


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE) * _PAGE


def _text(document: Mapping[str, Any]) -> str:
    """Formats JSON with one item per line, and each list of numbers on one line."""
    text = json.dumps(document, indent=1)
    return re.sub(r"\[[\s\d,-]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _document(capture: Capture) -> dict[str, Any]:
    after = [
        f"after.{number}" if same is None else f"before.{same}"
        for number, same in enumerate(_same(capture, one) for one in capture.after.storages)
    ]
    return {
        "format": _FORMAT,
        "op": capture.op,
        "note": capture.note,
        "facts": list(capture.facts),
        **capture.facts,
        "before": _dump_snapshot(
            capture.before, "before", [f"before.{n}" for n in range(len(capture.before.storages))]
        ),
        "after": _dump_snapshot(capture.after, "after", after),
    }


def _dump_snapshot(snapshot: Snapshot, name: str, keys: list[str]) -> dict[str, Any]:
    generators = [x for x in tree_leaves(snapshot.tree) if isinstance(x, GeneratorImage)]

    def dump(value: Any) -> Any:
        if isinstance(value, TensorImage):
            facts = asdict(value) | {"dtype": str(value.dtype).removeprefix("torch.")}
            return {"tensor": facts}
        if isinstance(value, GeneratorImage):
            place = next(n for n, image in enumerate(generators) if image is value)
            return {"generator": f"{name}.generator.{place}", "on": value.device}
        if isinstance(value, dict):
            return {"dict": {key: dump(member) for key, member in value.items()}}
        if isinstance(value, list | tuple):
            return [dump(member) for member in value]
        for key, kind in _NAMED.items():
            if isinstance(value, kind):
                return {key: str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        return value

    return {
        "storages": [
            {"key": key, "start": storage.start}
            for key, storage in zip(keys, snapshot.storages, strict=True)
        ],
        "tree": dump(snapshot.tree),
    }


def _load_snapshot(document: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Snapshot:
    def load(value: Any) -> Any:
        if isinstance(value, list):
            return [load(member) for member in value]
        if not isinstance(value, dict):
            return value
        (kind, held), *rest = value.items()
        if kind == "tensor":
            return _load_tensor(held)
        if kind == "generator":
            return GeneratorImage(tensors[held], rest[0][1])
        if kind == "dict":
            return {key: load(member) for key, member in held.items()}
        if kind in _NAMED:
            return getattr(torch, held)
        if kind == "complex":
            return complex(*held)
        return torch.device(held) if kind == "device" else float(held)

    return Snapshot(
        load(document["tree"]),
        tuple(
            StorageImage(tensors[one["key"]].view(torch.uint8), one["start"], None)
            for one in document["storages"]
        ),
    )


def _load_tensor(held: dict[str, Any]) -> TensorImage:
    dtype = getattr(torch, held["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{held['dtype']} is not a dtype")
    return TensorImage(
        **(held | {"dtype": dtype, "size": tuple(held["size"]), "stride": tuple(held["stride"])})
    )
