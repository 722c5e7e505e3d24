"""Reads the energy that the machine reports, where this user may read it.

Linux has two sources: RAPL counters of Intel processors (/sys/class/powercap) and the energy
counter of an NPU's hwmon. Many machines let only root read the first; virtual ones have neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["EnergyMeter", "find_meter"]

_POWERCAP = Path("/sys/class/powercap")
_HWMON = Path("/sys/class/hwmon")
_NPU_DRIVERS = ("intel_vpu", "npu")


@dataclass(frozen=True)
class EnergyMeter:
    """Energy counters.

    Attributes:
        name: what is counted, such as "package-0"; empty if nothing is.
        counters: files that hold microjoules since some time in the past.
        wrap_joules: where the sum of the counters wraps around to 0; 0 if that is unknown.
        reason: why nothing can be read; empty if something can.
    """

    name: str
    counters: tuple[Path, ...] = ()
    wrap_joules: float = 0.0
    reason: str = ""

    @property
    def is_readable(self) -> bool:
        """Whether there is anything to read."""
        return bool(self.counters)

    def read_joules(self) -> float | None:
        """Returns the counters' sum; None if there are none, or if one is gone."""
        try:
            values = [int(counter.read_text()) for counter in self.counters]
        except (OSError, ValueError):
            return None
        return sum(values) / 1e6 if values else None

    def mean_watts(self, before_joules: float | None, duration_s: float) -> float | None:
        """Returns the mean power since read_joules returned `before_joules`, `duration_s` ago."""
        after = self.read_joules()
        if before_joules is None or after is None or duration_s <= 0:
            return None
        used = after - before_joules
        if used < 0:
            used += self.wrap_joules
        return used / duration_s if used >= 0 else None


def find_meter(*, powercap: Path = _POWERCAP, hwmon: Path = _HWMON) -> EnergyMeter:
    """Finds an NPU's energy counter, or else those of the processor's packages.

    Args:
        powercap: where Linux lists RAPL zones.
        hwmon: where it lists sensors.
    """
    npu = [
        counter
        for sensor in sorted(hwmon.glob("hwmon*"))
        if _text(sensor / "name") in _NPU_DRIVERS
        for counter in sorted(sensor.glob("energy*_input"))
    ]
    if npu and all(map(_text, npu)):
        return EnergyMeter("NPU", tuple(npu))
    zones = [zone for zone in sorted(powercap.glob("*:*")) if zone.name.count(":") == 1]
    packages = {zone: _text(zone / "name") for zone in zones}
    chosen = [zone for zone, name in packages.items() if name.startswith("package")]
    if not chosen:
        return EnergyMeter("", reason=f"no energy counter in {powercap} or {hwmon}")
    counters = tuple(zone / "energy_uj" for zone in chosen)
    if not all(map(_text, counters)):
        return EnergyMeter("", reason=f"only root may read {counters[0]}")
    ranges = [_text(zone / "max_energy_range_uj") for zone in chosen]
    wrap = sum(int(one) for one in ranges) / 1e6 if all(map(str.isdigit, ranges)) else 0.0
    return EnergyMeter(" and ".join(packages[zone] for zone in chosen), counters, wrap)


def _text(file: Path) -> str:
    """Returns the contents of a kernel file; empty if it is missing or may not be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
