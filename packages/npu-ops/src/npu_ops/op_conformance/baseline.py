"""Baselines: results of cases on one machine, stored for another as safetensors and JSON.

A directory has `baseline.json` and one file of tensors per op. It contains no pickle, because
reading a baseline from another machine must not run code.
"""

from __future__ import annotations

import functools
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.errors import ConformanceError
from npu_ops.op_conformance.cases.case import Case
from npu_ops.op_conformance.cases.judge import Evaluation
from npu_ops.seal import check_file, damaged, digest, read_sealed, seal

__all__ = ["Baseline", "BaselineWriter", "checksum", "load_baseline", "pack", "unpack"]

_FORMAT = 2
_UNSEALED = 1  # the format before baselines had checksums
_INDEX = "baseline.json"
Packed = tuple[dict[str, Any], dict[str, torch.Tensor]]


def checksum(case: Case) -> int:
    """Returns the checksum of a case's inputs, to avoid comparing results of different inputs."""
    sums = 0
    for value in _tensors(case.make_arguments()):
        plain = value.detach().resolve_conj().contiguous().flatten()
        sums = zlib.crc32(plain.view(torch.uint8).numpy().tobytes(), sums)
    return sums


def pack(evaluation: Evaluation, given: list[torch.Tensor]) -> Packed:
    """Converts an evaluation to plain data and named tensors.

    Args:
        evaluation: the evaluation to store.
        given: the tensor arguments before the call; unchanged ones are not stored again.
    """
    tensors: dict[str, torch.Tensor] = {}

    def keep(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return {"value": value}
        # A copy: safetensors refuses two names for the same memory.
        tensors[name] = value.detach().resolve_conj().resolve_neg().contiguous().clone()
        return {"tensor": name}

    def kept(index: int, after: torch.Tensor) -> Any:
        return None if _is_same(after, given[index]) else keep(f"argument{index}", after)

    record = {
        "results": [keep(f"result{i}", value) for i, value in enumerate(evaluation.results)],
        "arguments": [kept(i, value) for i, value in enumerate(evaluation.arguments)],
        "error": evaluation.error,
    }
    return record, tensors


def unpack(
    record: dict[str, Any], tensors: dict[str, torch.Tensor], given: list[torch.Tensor]
) -> Evaluation:
    """Converts the result of `pack` back to an evaluation."""

    def found(entry: Any, index: int) -> Any:
        if entry is None:
            return given[index]
        return tensors[entry["tensor"]] if "tensor" in entry else entry["value"]

    return Evaluation(
        [found(entry, index) for index, entry in enumerate(record["results"])],
        [found(entry, index) for index, entry in enumerate(record["arguments"])],
        record["error"],
    )


def _is_same(after: torch.Tensor, before: torch.Tensor) -> bool:
    return (
        after.dtype == before.dtype
        and after.shape == before.shape
        and bool(torch.equal(after.nan_to_num(), before.nan_to_num()))
        and bool(torch.equal(after.isnan(), before.isnan()))
    )


@dataclass
class BaselineWriter:
    """Collects evaluations and writes the directory at the end.

    Attributes:
        place: path of the directory.
        budget_bytes: maximum size of all tensors; cases beyond it are listed as left out.
        facts: facts about the machine.
    """

    place: Path
    budget_bytes: int
    facts: dict[str, str]
    size_bytes: int = 0
    left_out: list[str] = field(default_factory=list)
    _cases: dict[str, Any] = field(default_factory=dict)
    _tensors: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def add(self, case: Case, check: str, inputs: int, packed: Packed) -> None:
        """Adds an evaluation, or records that the budget is exceeded.

        Args:
            case: the case.
            check: the check.
            inputs: the checksum of the case's inputs.
            packed: result of `pack`.
        """
        record, tensors = packed
        size = sum(tensor.nbytes for tensor in tensors.values())
        if self.size_bytes + size > self.budget_bytes:
            self.left_out.append(f"{case.id}/{check}")
            return
        self.size_bytes += size
        entry = self._cases.setdefault(case.id, {"inputs": inputs, "checks": {}})
        entry["checks"][check] = record
        of_op = self._tensors.setdefault(case.op, {})
        of_op.update({f"{case.id}/{check}/{name}": value for name, value in tensors.items()})

    def write(self) -> None:
        """Writes the files; the index last, so that an incomplete directory is not read."""
        from safetensors.torch import save

        self.place.mkdir(parents=True, exist_ok=True)
        files = {}
        for op, tensors in sorted(self._tensors.items()):
            data = save(tensors)
            file = _file(self.place, op)
            file.write_bytes(data)
            files[file.name] = digest(data)
        index = {
            "format": _FORMAT,
            "facts": self.facts,
            "budget_bytes": self.budget_bytes,
            "size_bytes": self.size_bytes,
            "left_out": sorted(self.left_out),
            "cases": self._cases,
        }
        (self.place / _INDEX).write_text(json.dumps(seal(index, files)), encoding="utf-8")


class Baseline:
    """A directory written by `BaselineWriter`.

    Attributes:
        facts: facts about the machine.
        has_checksums: whether damaged files are detected; False for earlier versions.
    """

    def __init__(self, place: Path) -> None:
        """Reads the index; tensors are read on demand.

        Raises:
            ConformanceError: [conformance-baseline] if it is missing or has another format.
            DamagedFileError: [file-damaged] if the index does not match its checksum.
        """
        try:
            index, self.has_checksums = read_sealed(place / _INDEX)
            form = index["format"]
        except (OSError, KeyError, TypeError) as error:
            raise self._error(place, f"{type(error).__name__}: {error}") from error
        if form not in (_UNSEALED, _FORMAT):
            raise self._error(place, f"format {form}")
        if form == _FORMAT and not self.has_checksums:
            raise damaged(place / _INDEX, "its checksum is missing")
        self._place = place
        self._index: dict[str, Any] = index
        self._checked: set[Path] = set()
        self._cases: dict[str, Any] = index["cases"]
        self.facts: dict[str, str] = index["facts"]

    def check(self) -> None:
        """Compares all files with their checksums, if any.

        Raises:
            DamagedFileError: [file-damaged].
        """
        if self.has_checksums:
            for name in self._index["files"]:
                self._check_file(self._place / name)

    def expected(self, case: Case, check: str) -> Evaluation | None:
        """Returns the other machine's evaluation; None if it was not stored.

        Raises:
            ConformanceError: [conformance-inputs] if this machine generates other inputs.
            DamagedFileError: [file-damaged] if the file of the op does not match its checksum.
        """
        entry = self._cases.get(case.id)
        record = entry["checks"].get(check) if entry is not None else None
        if entry is None or record is None:
            return None
        if entry["inputs"] != checksum(case):
            raise ConformanceError(
                f"{case.id}: inputs must equal the baseline's inputs, got others. Create the "
                "baseline again with this version of npu-ops.",
                code="conformance-inputs",
            )
        names = [
            part["tensor"]
            for part in (*record["results"], *record["arguments"])
            if part is not None and "tensor" in part
        ]
        tensors = {}
        if names:
            keys = {name: f"{case.id}/{check}/{name}" for name in names}
            tensors = self._read(_file(self._place, case.op), keys)
        return unpack(record, tensors, _tensors(case.make_arguments()))

    def _read(self, file: Path, keys: dict[str, str]) -> dict[str, torch.Tensor]:
        from safetensors import SafetensorError, safe_open

        if self.has_checksums:
            self._check_file(file)
        try:
            with safe_open(file, "pt") as opened:
                return {name: opened.get_tensor(key) for name, key in keys.items()}
        except (OSError, SafetensorError) as error:
            raise damaged(file, f"{type(error).__name__}: {error}") from error

    def _check_file(self, file: Path) -> None:
        """Once per file: a process reads the tensors of an op many times."""
        if file in self._checked:
            return
        try:
            data = file.read_bytes()
        except OSError as error:
            raise damaged(file, str(error)) from error
        check_file(self._index, file, data)
        self._checked.add(file)

    @staticmethod
    def _error(place: Path, received: str) -> ConformanceError:
        return ConformanceError(
            f"`--baseline` must be cpu, or a directory with {_INDEX} of format {_FORMAT}, got "
            f"{place}: {received}. Create one with `npu-ops conformance --save-baseline DIR`.",
            code="conformance-baseline",
        )


def _file(place: Path, op: str) -> Path:
    return place / f"{op}.safetensors"


@functools.cache
def load_baseline(place: str) -> Baseline:
    """Returns a baseline, read once per process."""
    return Baseline(Path(place))


def _tensors(arguments: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
