"""Measurements of calls, per device, in a file that processes share."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from npu_command.whole_files import locked, write_json

__all__ = ["Measurement", "Records"]

_logger = logging.getLogger(__name__)
_FORMAT = 1


@dataclass(frozen=True)
class Measurement:
    """Both bodies of one call on one device.

    Attributes:
        program_us: time of the program's call, microseconds, median.
        host_us: time of the host kernel's call, microseconds, median.
        is_equal: whether the results agreed within the dtype's tolerance.
        largest_error: largest difference, relative to the largest value of the host's result.
    """

    program_us: float
    host_us: float
    is_equal: bool
    largest_error: float


class Records:
    """Measurements by device and call. Threads and processes may share the file."""

    def __init__(self, path: Path) -> None:
        """Names the file, which need not exist; it is read at the first question."""
        self.path = path
        self._lock = threading.Lock()
        self._devices: dict[str, dict[str, Measurement]] | None = None

    def find(self, device: str, call: str) -> Measurement | None:
        """Returns what was measured for a call on a device, or None."""
        with self._lock:
            return self._known().get(device, {}).get(call)

    def calls(self, device: str) -> dict[str, Measurement]:
        """Returns all measurements of a device by call, in alphabetical order."""
        with self._lock:
            return dict(sorted(self._known().get(device, {}).items()))

    def add(self, device: str, call: str, measurement: Measurement) -> None:
        """Stores a measurement, beside those that other processes stored meanwhile.

        A file that cannot be written costs a warning; this process keeps the measurement.
        """
        with self._lock:
            self._known().setdefault(device, {})[call] = measurement
            try:
                with locked(self.path):
                    devices = _read(self.path)
                    devices.setdefault(device, {})[call] = measurement
                    _write(self.path, devices)
            except OSError as failure:
                _logger.warning("op records: cannot write %s (%s)", self.path, failure)

    def forget(self, device: str) -> int:
        """Removes all measurements of a device; returns how many there were."""
        with self._lock, locked(self.path):
            devices = _read(self.path)
            removed = len(devices.pop(device, {}))
            _write(self.path, devices)
            self._devices = devices
            return removed

    def _known(self) -> dict[str, dict[str, Measurement]]:
        if self._devices is None:
            self._devices = _read(self.path)
        return self._devices


def _read(path: Path) -> dict[str, dict[str, Measurement]]:
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            _logger.warning("op records: %s has another format; measuring again", path)
            return {}
        return {
            device: {call: Measurement(**values) for call, values in calls.items()}
            for device, calls in content["devices"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        _logger.warning("op records: %s cannot be read (%s); measuring again", path, failure)
        return {}


def _write(path: Path, devices: dict[str, dict[str, Measurement]]) -> None:
    content = {
        "format": _FORMAT,
        "devices": {
            device: {call: asdict(value) for call, value in sorted(calls.items())}
            for device, calls in sorted(devices.items())
        },
    }
    write_json(path, content, indent=1)
