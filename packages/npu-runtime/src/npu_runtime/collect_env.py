"""Collects the facts for a bug report, which ``npu-runtime collect-env`` prints.

torch's collection comes first, then the facts about npu. ``npu-runtime doctor`` diagnoses the
machine.
"""

import dataclasses
import getpass
import importlib.metadata
import json
import re
import socket
from pathlib import Path

from torch.utils import collect_env as torchs_own

from npu_runtime import _C, doctor
from npu_runtime.config import variables
from npu_runtime.errors import NpuError
from npu_runtime.info import device_info

__all__ = ["as_text", "collect", "shareable"]

_PACKAGES = (
    "npu-runtime",
    "npu-ops",
    "npu-compiler",
    "npu-llm",
    "npu-profiler",
    "openvino",
    "openvino-telemetry",
    "transformers",
    "safetensors",
)
_VARIABLES = (
    "NPU_",
    "ZE_",
    "OV_",
    "OPENVINO_",
    "OMP_",
    "KMP_",
    "MKL_",
    "GLOO_",
    "TORCH",
    "PYTORCH_",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)


def collect() -> dict[str, object]:
    """Returns this platform's additions to torch's collection, as JSON values.

    Keys: ``devices``, ``driver_error``, ``packages``, ``environment`` and ``doctor``.
    """
    devices: list[dict[str, object]] = []
    error = ""
    try:
        device_info(0)  # the reason, if there is no device
        devices = [dataclasses.asdict(device_info(index)) for index in range(_C.device_count())]
    except NpuError as failure:
        error = str(failure)
    machine = doctor.read_machine()
    return {
        "devices": devices,
        "driver_error": error,
        "packages": {name: _version(name) for name in _PACKAGES},
        "environment": variables(*_VARIABLES),
        "doctor": doctor.as_json(machine, doctor.run_checks(machine)),
    }


def shareable(collected: dict[str, object]) -> dict[str, object]:
    """Returns a shareable copy, without search paths and the names of user and machine."""
    environment = collected["environment"]
    assert isinstance(environment, dict)
    kept = {name: value for name, value in environment.items() if not name.startswith("LD_")}
    names = {
        str(Path.home()): "~",
        socket.gethostname(): "<machine>",
        getpass.getuser(): "<user>",
    }
    text = json.dumps({**collected, "environment": kept})
    for name, other in names.items():
        if len(name) > 1:
            whole = rf"(?<![\w-]){re.escape(json.dumps(name)[1:-1])}(?![\w-])"
            text = re.sub(whole, other, text)
    found: dict[str, object] = json.loads(text)
    return found


def as_text(collected: dict[str, object]) -> str:
    """Returns torch's collection, followed by ours, as text."""
    own = torchs_own.get_pretty_env_info()  # type: ignore[no-untyped-call]
    return f"{own.strip()}\n\n{_text(collected)}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _text(collected: dict[str, object]) -> str:
    devices, packages = collected["devices"], collected["packages"]
    environment, examined = collected["environment"], collected["doctor"]
    assert isinstance(devices, list)
    assert isinstance(packages, dict)
    assert isinstance(environment, dict)
    assert isinstance(examined, dict)
    lines = ["npu devices:"]
    for device in devices:
        lines.append(f"  {device['name']}: {device['device']} ({device['full_name']})")
        lines += [f"    {key}: {value}" for key, value in device.items() if key != "name"]
    if not devices:
        lines.append(f"  none: {collected['driver_error']}")
    lines.append("Versions of the platform:")
    lines += [f"  {name}: {version}" for name, version in packages.items()]
    lines.append("Environment variables:")
    lines += [f"  {name}={value}" for name, value in environment.items()] or ["  none that matter"]
    lines.append(f"npu-runtime doctor: {examined['verdict']}")
    lines += [
        f"  {check['name']}: {check['status']}: {check['found']}" for check in examined["checks"]
    ]
    return "\n".join(lines)
