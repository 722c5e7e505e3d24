"""Rockchip's compiler behind the interface of npu_compiler.target_compiler.targets."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

from npu_compiler.config import read_settings
from npu_compiler.errors import TargetError
from npu_compiler.programs.kept_files import KeptFiles
from npu_compiler.target_compiler import (
    GraphProgram,
    Target,
    TargetProgram,
    TargetReport,
    Vendor,
)
from npu_runtime import ProgramError
from npu_target_rockchip import environment
from npu_target_rockchip.known_defects import refusal
from npu_target_rockchip.onnx_graphs import (
    constant_results,
    input_shape,
    result_places,
    write_onnx,
)
from npu_target_rockchip.toolkit import Toolkit, ToolkitEndedError

__all__ = ["RockchipCompiler"]

_BLOB, _MODEL, _FORMAT = "program.rknn", "model.onnx", "3"
_ADDRESSED_BYTES = 1 << 32
_NUMBERS = itertools.count()
_EXECUTING = re.compile(r"While executing %(\w+)")  # of the graph's own nodes
_ENDED = "rknn-toolkit2: "  # of a reason that is not the toolkit's own


class RockchipCompiler(Vendor):
    """Compiles graphs by way of ONNX; results are the simulator's."""

    name = "rockchip"
    targets = (
        Target("rk3588", "rk3588", "Rockchip RK3588"),
        Target("rk3576", "rk3576", "Rockchip RK3576"),
        Target("rk3568", "rk3568", "Rockchip RK3568"),
        Target("rk3566", "rk3566", "Rockchip RK3566"),
        Target("rk3562", "rk3562", "Rockchip RK3562"),
    )
    licence = (
        "the RKNN SDK License of Rockchip Electronics Co., Ltd. "
        "(https://github.com/airockchip/rknn-toolkit2/blob/master/LICENSE)"
    )
    blob_suffix = ".rknn"

    def install(
        self, release: str | None, *, wheel: Path | None, shows_progress: bool
    ) -> dict[str, Any]:
        """Makes the toolkit's environment."""
        return environment.install(release, wheel=wheel, shows_progress=shows_progress)

    def remove(self, release: str) -> None:
        """Removes the toolkit's environment."""
        environment.remove(release)

    def state(self) -> dict[str, Any]:
        """Returns the environments that are there."""
        return environment.state()

    def refusal(self, node: fx.Node, target: Target) -> str | None:
        """Returns why a call stays on the host, by the table of known defects."""
        return refusal(node)

    def compile(self, program: GraphProgram, target: Target) -> TargetProgram:
        """Compiles a graph, or returns the report that was kept.

        Raises [target-absent], [target-compiler], and [target-size] for weights beyond 32-bit
        addresses.
        """
        _check_size(program, target)
        toolkit = _toolkit()
        with tempfile.TemporaryDirectory(
            prefix="npu-rockchip-", dir=read_settings().temporary_dir
        ) as place:
            folder = Path(place)
            try:
                write_onnx(program, folder / _MODEL)
            except Exception as failure:  # noqa: BLE001  # the exporter's reason, whatever it is
                text = " ".join(str(failure.__cause__ or failure).split())
                at = _EXECUTING.search(text)
                report = _report(target, toolkit, f"torch.onnx: {text[:300]}")
                return TargetProgram(replace(report, operation=at[1] if at else ""))
            _write_dataset(program, folder)
            return _Build(toolkit, target, folder, program).program()

    def describe_blob(self, program: GraphProgram, target: Target, file: str) -> str:
        """Returns the page written next to an exported blob."""
        shapes = [tuple(input_shape(node)) for node in program.inputs]
        formats = ["nchw" if len(shape) == 4 else None for shape in shapes]
        arrays = ", ".join(f"np.zeros({shape}, np.float32)" for shape in shapes)
        given = f", data_format={[each or 'nchw' for each in formats]}" if any(formats) else ""
        return f"""# {program.name} on {target.chip}

Not tried on a board. Copy `{file}` there, and `pip install rknn-toolkit-lite2`.

```python
import numpy as np
from rknnlite.api import RKNNLite

board = RKNNLite()
assert board.load_rknn("{Path(file).name}") == 0
assert board.init_runtime() == 0
results = board.inference(inputs=[{arrays}]{given})
print([result.shape for result in results])
board.release()
```
"""


@functools.cache
def _toolkit() -> Toolkit:
    return Toolkit()


def _check_size(program: GraphProgram, target: Target) -> None:
    size = sum(2 * tensor.numel() for tensor in program.constants.values())
    if size >= _ADDRESSED_BYTES:
        raise TargetError(
            f"{program.name}: weights for {target} must fit 32-bit addresses, 4.3 GB, got "
            f"{size / 1e9:.1f} GB in float16. Compile parts of the model, or a smaller one.",
            code="target-size",
        )


def _report(target: Target, toolkit: Toolkit, reason: str = "", **found: Any) -> TargetReport:
    return TargetReport(
        target=target.number,
        compiler=f"rknn-toolkit2 {toolkit.release}",
        is_accepted=not reason,
        reason=reason,
        operation="",
        blob=found.get("blob"),
        blob_bytes=found.get("blob_bytes", 0),
        duration_s=found.get("duration_s", 0.0),
        estimate=None,
    )


def _write_dataset(program: GraphProgram, folder: Path) -> None:
    """Writes calibration data as the toolkit reads it: a line of files for each example."""
    lines = []
    for number, values in enumerate(program.calibration):
        files = [folder / f"example_{number}_{place}.npy" for place in range(len(values))]
        for file, value in zip(files, values, strict=True):
            np.save(file, np.atleast_1d(value.detach().cpu().float().numpy()))
        lines.append(" ".join(file.name for file in files))
    if lines:
        (folder / "dataset.txt").write_text("\n".join(lines) + "\n")


class _Build:
    """One ONNX file and the models that the toolkit makes of it."""

    def __init__(
        self, toolkit: Toolkit, target: Target, folder: Path, program: GraphProgram
    ) -> None:
        self._toolkit = toolkit
        self._target = target
        self._name = program.name
        self._inputs = [input_shape(node) for node in program.inputs]
        results: Any = program.module.graph.output_node().args[0]
        places = result_places(program)
        unique = [place for place in dict.fromkeys(places) if place >= 0]
        self._sizes = [results[place].meta["val"].numel() for place in unique]
        files = {place: index for index, place in enumerate(unique)}
        self._places = [files.get(place, -1) for place in places]
        self._constants = constant_results(program)
        self._number = next(_NUMBERS)
        self._started = 0  # the start of the toolkit that has the model
        self._cache = KeptFiles()
        digest = hashlib.sha256(f"{_FORMAT} {target.number} {toolkit.release}".encode())
        for file in sorted(folder.iterdir()):
            digest.update(file.name.encode() + file.read_bytes())
        self._key = digest.hexdigest()[:40]
        self._folder = folder

    def program(self) -> TargetProgram:
        """Returns the cached result, or compiles."""
        found = self._cache.find_files(self._key)
        if found is None:
            report = self._compile()
            if (
                report.reason.startswith(_ENDED) and "longer" in report.reason
            ):  # more time or memory may give another
                return TargetProgram(report)
            facts = replace(report, blob=None).as_dict()
            name = f"{self._name}, {self._target}"
            self._cache.store_files(self._key, self._keep, name=name, facts=facts)
            found = self._cache.find_files(self._key)
            if found is None:
                raise TargetError(
                    f"target: {str(self._cache.directory)!r} must be a folder that can be written, "
                    "for reports and blobs. Make room, or set NPU_COMPILE_CACHE_DIR.",
                    code="target-cache",
                )
        self._folder, facts = found
        accepted = facts["is_accepted"]
        report = TargetReport(**facts | {"blob": self._folder / _BLOB if accepted else None})
        if not accepted:
            return TargetProgram(report)
        weakref.finalize(self, _drop, self._toolkit, self._number, self._started)
        return TargetProgram(report, self.run)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Computes in the simulator; a process that ended meanwhile builds the model again."""
        with tempfile.TemporaryDirectory(dir=self._toolkit.folder) as place:
            files = [f"{place}/input{index}.npy" for index in range(len(inputs))]
            for file, tensor in zip(files, inputs, strict=True):
                np.save(file, np.atleast_1d(tensor.detach().float().numpy()))
            try:
                found = {}
                if self._started != self._toolkit.starts:
                    found = self._ask_for_build(f"{place}/{_BLOB}")
                if "reason" not in found:
                    found = self._toolkit.ask(
                        "run", number=self._number, inputs=files, results=f"{place}/result"
                    )
            except ToolkitEndedError as failure:
                found = {"reason": str(failure)}
            if "reason" in found:
                raise ProgramError(
                    f"{self._name}: the simulator of {self._target} must compute it, got: "
                    f"{found['reason']}. List its ops in fallback_ops.",
                    code="target-run",
                )
            arrays = [np.load(file) for file in found["results"]]
            return [
                torch.from_numpy(arrays[file]) if file >= 0 else self._constants[place]
                for place, file in enumerate(self._places)
            ]

    def _compile(self) -> TargetReport:
        blob = self._folder / _BLOB
        started = time.monotonic()
        try:
            found = self._ask_for_build(str(blob))
        except ToolkitEndedError as failure:
            found = {"refused": "build", "reason": f"{_ENDED}{failure}"}
        duration_s = round(time.monotonic() - started, 3)
        if "refused" in found:
            step = "" if found["reason"].startswith(_ENDED) else f"{found['refused']}: "
            reason = step + found["reason"]
            return _report(self._target, self._toolkit, reason, duration_s=duration_s)
        size = blob.stat().st_size
        return _report(
            self._target, self._toolkit, blob=blob, blob_bytes=size, duration_s=duration_s
        )

    def _ask_for_build(self, blob: str) -> Mapping[str, Any]:
        dataset = self._folder / "dataset.txt"
        found = self._toolkit.ask(
            "build",
            number=self._number,
            model=str(self._folder / _MODEL),
            platform=self._target.number,
            dataset=str(dataset) if dataset.exists() else "",
            blob=blob,
            inputs=self._inputs,
            sizes=self._sizes,
        )
        self._started = self._toolkit.starts
        return found

    def _keep(self, place: Path) -> None:
        for file in self._folder.iterdir():
            shutil.copy(file, place / file.name)


def _drop(toolkit: Toolkit, number: int, started: int) -> None:
    if started == toolkit.starts:
        try:
            toolkit.ask("drop", number=number)
        except (ToolkitEndedError, TargetError):
            return
