"""The command ``npu-runtime``: what the device is, for people and for programs.

What it prints comes from info.py, torch.npu and the package doctor.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import sys
from collections.abc import Sequence

import torch

from npu_command.endings import ENDINGS, end
from npu_runtime import _C, doctor
from npu_runtime.errors import NpuError
from npu_runtime.info import device_info

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    ``info``: 0, or 2 when no device can serve. ``doctor``: 0 when nothing keeps the NPU from
    serving, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="npu-runtime", description="The npu device of this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="which device serves as npu, and why")
    examine = commands.add_parser("doctor", help="what keeps the NPU from serving, and the fix")
    for command in (info, examine):
        command.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        code = _doctor(options.json) if options.command == "doctor" else _info(options.json)
        sys.stdout.flush()  # here, where a reader that has gone is caught
        return code
    except ENDINGS as error:
        return end(f"npu-runtime {options.command}", error)


def _doctor(as_json: bool) -> int:
    machine = doctor.read_machine()
    checks = doctor.run_checks(machine)
    if as_json:
        print(json.dumps(doctor.as_json(machine, checks), indent=2))
    else:
        print(doctor.as_table(machine, checks))
    return doctor.exit_code(checks)


def _info(as_json: bool) -> int:
    try:
        report = _report()
    except NpuError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2) if as_json else _table(report))
    return 0


def _report() -> dict[str, object]:
    """Everything ``info`` tells, as JSON-like values."""
    device_info(0)  # raises, with the reason, where there is no device
    free_bytes, total_bytes = _C.memory_info(0)
    return {
        "npu-runtime": importlib.metadata.version("npu-runtime"),
        "torch": str(torch.__version__),
        "openvino": importlib.metadata.version("openvino"),
        "devices": [dataclasses.asdict(device_info(index)) for index in range(_C.device_count())],
        "memory": {"free_bytes": free_bytes, "total_bytes": total_bytes},
    }


def _table(report: dict[str, object]) -> str:
    devices = report["devices"]
    memory = report["memory"]
    assert isinstance(devices, list)
    assert isinstance(memory, dict)
    rows: list[tuple[str, object]] = []
    for device in devices:
        rows += [
            ("device", device["name"]),
            ("served by", f"{device['device']} ({device['full_name']}), driver {device['driver']}"),
            ("because", device["reason"]),
            ("computes in", " ".join(device["capabilities"]) or "not told by the vendor"),
            ("vendor software", device["driver_version"]),
        ]
    gib = 2**30
    rows.append(
        (
            "memory",
            f"{memory['free_bytes'] / gib:.1f} of {memory['total_bytes'] / gib:.1f} GiB free",
        )
    )
    rows += [(name, report[name]) for name in ("npu-runtime", "torch", "openvino")]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:{width}}  {value}" for label, value in rows)


if __name__ == "__main__":
    sys.exit(main())
