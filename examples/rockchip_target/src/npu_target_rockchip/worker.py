"""The toolkit's side: builds and runs models in the toolkit's own environment, one line a request.

It imports nothing of this wheel, whose numpy and protobuf the toolkit does not share. A request and
its answer are JSON; tensors travel as files. What the toolkit prints goes to a log by request.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m|(?<=RKNN: )\[[\d:.]+\] ")  # and times of day
# Errors that the toolkit marks, and the last line of a traceback.
_ERROR = re.compile(r"E (?!.*Traceback \()|[\w.]*[A-Z]\w+: ")
# Progress bars, and the toolkit's output for every model.
_HARMLESS = re.compile(r"it/s\]|op target: |rknn-toolkit2 version|^[DIW] |^W\b")
_MOST = 500


class Toolkit:
    """Models that are built, by number."""

    def __init__(self) -> None:
        from rknn.api import RKNN

        self._make = RKNN
        self._models: dict[int, Any] = {}

    def build(
        self,
        number: int,
        model: str,
        platform: str,
        dataset: str,
        blob: str,
        inputs: list[list[int]],
        sizes: list[int],
    ) -> dict[str, Any]:
        """Compiles an ONNX file, in int8 if there is a dataset, writes the blob, and tries it.

        `inputs` are shapes, `sizes` the numbers of elements that the results must have.
        """
        import numpy as np

        made = self._make(verbose=False)
        quantized = {"quantized_dtype": "w8a8"} if dataset else {}
        steps = {
            "config": lambda: made.config(target_platform=platform, **quantized),
            "load_onnx": lambda: made.load_onnx(model),
            "build": lambda: made.build(do_quantization=bool(dataset), dataset=dataset or None),
            "export_rknn": lambda: made.export_rknn(blob),
            "init_runtime": made.init_runtime,
        }
        for name, step in steps.items():
            code = step()
            if code != 0:
                made.release()
                return {"refused": name, "code": code}
        found = made.inference([np.zeros(shape, np.float32) for shape in inputs], _formats(inputs))
        if found is None or [array.size for array in found] != sizes:
            got = None if found is None else [array.shape for array in found]
            print(f"E the results must have {sizes} elements, got shapes {got}", flush=True)
            made.release()
            return {"refused": "inference", "code": -1}
        self._models[number] = made
        return {}

    def run(self, number: int, inputs: list[str], results: str) -> dict[str, Any]:
        """Runs a model in the simulator on files of arrays, and writes those of the results."""
        import numpy as np

        arrays = [np.load(file) for file in inputs]
        found = self._models[number].inference(arrays, _formats([x.shape for x in arrays]))
        if found is None:
            return {"refused": "inference", "code": -1}
        for index, array in enumerate(found):
            np.save(f"{results}{index}.npy", array)
        return {"results": [f"{results}{index}.npy" for index in range(len(found))]}

    def drop(self, number: int) -> dict[str, Any]:
        """Releases a model."""
        made = self._models.pop(number, None)
        if made is not None:
            made.release()
        return {}


def _formats(shapes: list[Any]) -> list[str] | None:
    """Returns the layouts of inputs, which the toolkit takes as NHWC where they have four sizes."""
    return ["nchw"] * len(shapes) if any(len(shape) == 4 for shape in shapes) else None


def reason_of(log: str) -> str:
    """Returns the toolkit's own words for a failure, without bars and colours, on one line."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", _COLOUR.sub("", log))]
    told = [line for line in lines if line and not _HARMLESS.search(line)]
    errors = [line.removeprefix("E ") for line in told if _ERROR.match(line)] or told[-3:]
    return " ".join(" ".join(dict.fromkeys(errors)).split())[:_MOST] or "refused without a message"


def main(memory_bytes: int) -> None:
    """Answers requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    log = Path("log.txt")
    place = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(place, 1)
    os.dup2(place, 2)

    def answer(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    try:
        toolkit = Toolkit()
    except BaseException:  # noqa: BLE001  # whatever it is, the environment is broken
        traceback.print_exc()
        answer({"broken": reason_of(log.read_text(errors="replace").strip().rpartition("\n")[2])})
        return
    answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        os.ftruncate(place, 0)
        os.lseek(place, 0, os.SEEK_SET)
        try:
            found = getattr(toolkit, request.pop("do"))(**request)
        except Exception as failure:  # noqa: BLE001  # whatever the toolkit raises is a refusal
            found = {"refused": type(failure).__name__, "code": -1}
            print(f"E {type(failure).__name__}: {failure}", flush=True)
        sys.stdout.flush()
        if "refused" in found:
            found["reason"] = reason_of(log.read_text(errors="replace"))
        answer(found)


if __name__ == "__main__":
    main(int(sys.argv[1]))
