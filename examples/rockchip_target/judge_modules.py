"""Judges torch's database of modules on the simulator: `python judge_modules.py -o FILE`."""

from __future__ import annotations

import argparse
import copy
import csv
import signal
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db

from npu_compiler.graph_compiler.records import collecting
from npu_compiler.suite.measurement import relative_error, tensors_of

_BOUND = 8 * 2**-10  # roundings of float16, as in npu_compiler.suite
_SAMPLES = 3
_LIMIT_S = 20  # for one sample; recurrent layers become hundreds of calls


def judge(info: Any, target: str) -> dict[str, Any]:
    """Returns the row of a module: samples, those that are right, and the calls in programs."""
    torch.manual_seed(0)
    samples = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
    )
    row = {"name": info.name, "samples": 0, "right": 0, "calls": 0, "lowered": 0, "detail": ""}
    for sample in samples[:_SAMPLES]:
        made, given = sample.constructor_input, sample.forward_input
        if given is None:
            continue
        try:
            module = info.module_cls(*made.args, **made.kwargs).eval()
            module(*given.args, **given.kwargs)  # lazy modules draw their weights now
            expected = tensors_of(copy.deepcopy(module)(*given.args, **given.kwargs))
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            continue  # torch's CPU does not compute it
        row["samples"] += 1
        torch._dynamo.reset()
        signal.alarm(_LIMIT_S)
        try:
            with collecting() as records:
                options = {"target": target, "verify": "off"}
                compiled = torch.compile(module, backend="npu", dynamic=False, options=options)
                error = relative_error(tensors_of(compiled(*given.args, **given.kwargs)), expected)
        except Exception as failure:  # noqa: BLE001  # whatever a compilation raises is the row's
            row["detail"] = f"{type(failure).__name__}: {' '.join(str(failure).split())[:150]}"
            continue
        finally:
            signal.alarm(0)
        row["right"] += error <= _BOUND
        row["calls"] += sum(record.node_count for record in records)
        row["lowered"] += sum(record.lowered_count for record in records)
        if error > _BOUND:
            row["detail"] = f"off by {error:.1e}"
    return row


def _stop(number: int, frame: Any) -> None:
    raise TimeoutError(f"not finished within {_LIMIT_S} s")


def main() -> None:
    """Writes a row for each module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="rk3588")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    with given.output.open("w", newline="") as file, torch.no_grad():
        writer = csv.DictWriter(
            file, ("name", "samples", "right", "calls", "lowered", "detail"), lineterminator="\n"
        )
        writer.writeheader()
        for info in module_db:
            writer.writerow(judge(info, given.target))
            file.flush()


if __name__ == "__main__":
    main()
