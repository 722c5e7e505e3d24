"""`npu-runtime info`: shows the device behind npu and the reason, as text or JSON."""

import dataclasses
import importlib.metadata
from collections.abc import Sequence

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, aligned, give_answer, terminal_width

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prints the device in use; returns 0."""
    parser = CommandParser(
        prog="npu-runtime info", description="Show the npu device, and why it was selected."
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    report = _report()
    give_answer(options.json, report, lambda: print(_table(report)))
    return 0


def _report() -> dict[str, object]:
    """Returns all facts as JSON-like values."""
    import torch  # late: --help does not need it

    from npu_runtime import _C
    from npu_runtime.info import device_info

    device_info(0)  # raises, with the reason, if there is no device
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
    rows: list[tuple[str, str]] = []
    for device in devices:
        rows += [
            ("device", device["name"]),
            ("served by", f"{device['device']} ({device['full_name']}), driver {device['driver']}"),
            ("because", device["reason"]),
            ("computes in", " ".join(device["capabilities"]) or "not reported by the vendor"),
            ("vendor software", device["driver_version"]),
        ]
    gib = 2**30
    free, total = memory["free_bytes"] / gib, memory["total_bytes"] / gib
    rows.append(("memory", f"{free:.1f} of {total:.1f} GiB free"))
    rows += [(name, str(report[name])) for name in ("npu-runtime", "torch", "openvino")]
    return "\n".join(aligned(rows, width=terminal_width()))
