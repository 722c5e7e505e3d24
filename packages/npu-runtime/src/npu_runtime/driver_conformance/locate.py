"""Finds the driver under test by name: its table, its library and its programs."""

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass

from npu_runtime import _C
from npu_runtime.driver_conformance.program_set import ProgramSet, openvino_programs
from npu_runtime.errors import DriverError, InputError
from npu_runtime.plugins import (
    BUILT_IN,
    library_of,
    openvino_library,
    vendor_entry_points,
)

__all__ = ["DriverUnderTest", "find_driver"]


@dataclass(frozen=True)
class DriverUnderTest:
    """A driver under test."""

    name: str  # its name in ``NPU_DRIVER``
    # Returns the address of its ``npu_driver``. Called in a child process, because it loads the
    # library.
    table_address: Callable[[], int]
    vendor_library: str | None = None  # the ``vendor_library`` of ``open``
    device: str | None = None  # the ``requested_device`` of ``open``
    # The programs for the checks of programs and requests, or None.
    programs: ProgramSet | None = None
    no_programs: str = ""  # the reason for their absence


def find_driver(name: str, *, device: str | None = None) -> DriverUnderTest:
    """Finds a built-in or an installed driver.

    Raises:
        InputError: no driver has this name (code ``driver-unknown``).
        DriverError: the vendor's wheel fails to locate its library (code ``driver-locate``).
    """
    if name in BUILT_IN:
        return DriverUnderTest(
            name=name,
            table_address=lambda: _C.driver_table(name),
            vendor_library=openvino_library() or None,
            device=device,
            programs=openvino_programs(),
        )
    entries = {entry.name: entry for entry in vendor_entry_points()}
    if name not in entries:
        known = ", ".join([*BUILT_IN, *entries])
        raise InputError(
            f"conformance: driver must be one of {known}, got {name!r}. "
            "Install the wheel that holds it, or check the name of its entry point.",
            code="driver-unknown",
        )
    try:
        library = library_of(entries[name])
        module = importlib.import_module(entries[name].module)
        give_programs = getattr(module, "conformance_programs", None)
        programs = None if give_programs is None else give_programs()
    except Exception as error:
        raise DriverError(
            f"conformance: the entry point of driver {name} must return the path of the library, "
            f"got {type(error).__name__}: {error}. Correct {entries[name].value}.",
            code="driver-locate",
        ) from error
    return DriverUnderTest(
        name=name,
        table_address=lambda: table_of_library(library),
        device=device,
        programs=programs,
        no_programs=f"{entries[name].module} has no function conformance_programs()",
    )


def table_of_library(library: str) -> int:
    """The address that a library's ``npu_driver_table()`` returns."""
    function = ctypes.CDLL(library).npu_driver_table
    function.restype = ctypes.c_void_p
    function.argtypes = []
    return int(function() or 0)
