"""include/npu/driver.h for Python: the structs and the function types, field by field.

tests/driver_conformance/test_driver_table.py compares them with the header.
"""

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any

__all__ = [
    "ABI_VERSION",
    "DONE",
    "FIELDS",
    "FUNCTIONS",
    "MAX_RANK",
    "NULLABLE",
    "DeviceProperties",
    "Direction",
    "DriverTable",
    "Dtype",
    "LayerRecord",
    "Option",
    "Port",
    "ProgramSource",
    "Status",
]

ABI_VERSION = 1
MAX_RANK = 12


class Status(IntEnum):
    """npu_status."""

    OK = 0
    ERROR = 1
    ERROR_ARGUMENT = 2
    ERROR_MEMORY = 3
    ERROR_UNSUPPORTED = 4
    ERROR_ABSENT = 5


class Dtype(IntEnum):
    """npu_dtype."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    FLOAT16 = 7
    BFLOAT16 = 8
    FLOAT32 = 9
    FLOAT64 = 10


class Direction(IntEnum):
    """npu_direction."""

    INPUT = 0
    OUTPUT = 1


class DeviceProperties(ctypes.Structure):
    """npu_device_properties."""

    _fields_ = (
        ("name", c_char * 64),
        ("full_name", c_char * 256),
        ("driver_version", c_char * 64),
        ("capabilities", c_char * 256),
        ("memory_bytes", c_uint64),
        ("inline_below_ns", c_int64),
    )


class Option(ctypes.Structure):
    """npu_option."""

    _fields_ = (("key", c_char_p), ("value", c_char_p))


class ProgramSource(ctypes.Structure):
    """npu_program_source."""

    _fields_ = (
        ("path", c_char_p),
        ("model", c_char_p),
        ("model_bytes", c_size_t),
        ("weights", c_void_p),
        ("weights_bytes", c_size_t),
        ("options", POINTER(Option)),
        ("option_count", c_size_t),
    )


class Port(ctypes.Structure):
    """npu_port."""

    _fields_ = (
        ("name", c_char * 256),
        ("dtype", c_int),
        ("rank", c_int32),
        ("dims", c_int64 * MAX_RANK),
    )


class LayerRecord(ctypes.Structure):
    """npu_layer_record."""

    _fields_ = (
        ("name", c_char * 256),
        ("type", c_char * 64),
        ("implementation", c_char * 64),
        ("duration_us", c_int64),
    )


DONE = CFUNCTYPE(None, c_void_p, c_int, c_char_p)


def _returns_status(*arguments: Any) -> Any:
    return CFUNCTYPE(c_int, *arguments)


_handle = (
    c_void_p  # npu_program*, npu_request*, npu_stream*, npu_event*: drivers know what they are
)
_flag = POINTER(c_int32)
_memory = _returns_status(c_int32, c_void_p, c_size_t)


class DriverTable(ctypes.Structure):
    """npu_driver."""

    _fields_ = (
        ("abi_version", c_uint32),
        ("name", c_char_p),
        ("last_error", CFUNCTYPE(c_char_p)),
        ("open", _returns_status(c_char_p, c_char_p)),
        ("choice_reason", CFUNCTYPE(c_char_p)),
        ("device_count", _returns_status(POINTER(c_int32))),
        ("device_properties", _returns_status(c_int32, POINTER(DeviceProperties))),
        ("memory_attach", _returns_status(c_void_p, c_size_t)),
        ("memory_commit", _memory),
        ("memory_decommit", _memory),
        ("host_access_begin", _memory),
        ("host_access_end", _memory),
        (
            "memory_copy",
            _returns_status(_handle, c_void_p, c_void_p, c_size_t, DONE, c_void_p),
        ),
        ("stream_create", _returns_status(c_int32, c_int32, POINTER(_handle))),
        ("stream_destroy", CFUNCTYPE(None, _handle)),
        ("stream_query", _returns_status(_handle, _flag)),
        ("stream_synchronize", _returns_status(_handle)),
        ("stream_wait_event", _returns_status(_handle, _handle)),
        ("event_create", _returns_status(c_int32, POINTER(_handle))),
        ("event_destroy", CFUNCTYPE(None, _handle)),
        ("event_record", _returns_status(_handle, _handle)),
        ("event_query", _returns_status(_handle, _flag)),
        ("event_synchronize", _returns_status(_handle)),
        ("event_time_ns", _returns_status(_handle, POINTER(c_int64))),
        ("program_load", _returns_status(c_int32, POINTER(ProgramSource), POINTER(_handle))),
        ("program_unload", CFUNCTYPE(None, _handle)),
        ("program_port_count", _returns_status(_handle, c_int, POINTER(c_size_t))),
        ("program_port", _returns_status(_handle, c_int, c_size_t, POINTER(Port))),
        ("program_property", _returns_status(_handle, c_char_p, c_void_p, c_size_t)),
        ("request_create", _returns_status(_handle, POINTER(_handle))),
        ("request_destroy", CFUNCTYPE(None, _handle)),
        (
            "request_bind",
            _returns_status(_handle, c_int, c_size_t, c_int, c_int32, POINTER(c_int64), c_void_p),
        ),
        ("request_run", _returns_status(_handle, _handle, DONE, c_void_p)),
        ("request_output", _returns_status(_handle, c_size_t, POINTER(Port), POINTER(c_void_p))),
        (
            "request_layers",
            _returns_status(_handle, POINTER(LayerRecord), c_size_t, POINTER(c_size_t)),
        ),
    )


FIELDS = tuple(name for name, *_ in DriverTable._fields_)
FUNCTIONS = FIELDS[2:]
NULLABLE = ("host_access_begin", "host_access_end")
