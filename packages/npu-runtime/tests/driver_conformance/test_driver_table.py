"""The ctypes mirror of the table against include/npu/driver.h, name by name and type by type."""

import ctypes
import re
from pathlib import Path

import pytest

from npu_runtime.driver_conformance import driver_table
from npu_runtime.driver_conformance.driver_table import FIELDS, FUNCTIONS, DriverTable

HEADER = (Path(__file__).parents[2] / "include" / "npu" / "driver.h").read_text()
TEXT = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)

OPAQUE = ("npu_program", "npu_request", "npu_stream", "npu_event")
STRUCTS = {
    "npu_device_properties": driver_table.DeviceProperties,
    "npu_option": driver_table.Option,
    "npu_program_source": driver_table.ProgramSource,
    "npu_port": driver_table.Port,
    "npu_layer_record": driver_table.LayerRecord,
}
SCALARS = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "npu_status": ctypes.c_int,
    "npu_dtype": ctypes.c_int,
    "npu_direction": ctypes.c_int,
    "npu_done": driver_table.DONE,
    "char*": ctypes.c_char_p,
    "void*": ctypes.c_void_p,
    "void": None,
} | STRUCTS
# `char* value` is a buffer that the driver fills; c_char_p would pass Python's bytes.
FILLED = {("program_property", 2)}


def ctype_of(declared: str) -> object:
    """The ctypes type of a C type without a name, for example `const npu_port*`."""
    text = re.sub(r"\bconst\b|\s", "", declared)
    if text in SCALARS:
        return SCALARS[text]
    assert text.endswith("*"), declared
    inner = text[:-1]
    return ctypes.c_void_p if inner in OPAQUE else ctypes.POINTER(ctype_of(inner))


def body_of(struct: str) -> str:
    found = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", TEXT, flags=re.DOTALL)
    assert found is not None
    return found.group(1)


def functions_of_the_header() -> dict[str, tuple[object, list[object]]]:
    found = {}
    pattern = r"([\w\s]+?\*?)\s*\(\*(\w+)\)\(([^)]*)\);"
    for result, name, arguments in re.findall(pattern, body_of("npu_driver")):
        types = [] if arguments.strip() == "void" else arguments.split(",")
        found[name] = (
            ctype_of(result),
            [ctype_of(re.sub(r"\w+$", "", " ".join(item.split()))) for item in types],
        )
    return found


def test_fields_stand_in_the_headers_order():
    names = re.findall(r"(?:\(\*(\w+)\)\(|(\w+);)", body_of("npu_driver"))
    in_order = [function or plain for function, plain in names]
    assert in_order == list(FIELDS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_and_gives_what_the_header_says(name):
    result, arguments = functions_of_the_header()[name]
    kind = dict(DriverTable._fields_)[name]
    expected = [
        ctypes.c_void_p if (name, number) in FILLED else item
        for number, item in enumerate(arguments)
    ]
    assert kind._restype_ is result
    assert list(kind._argtypes_) == expected


@pytest.mark.parametrize("struct", STRUCTS)
def test_a_struct_has_the_headers_fields(struct):
    expected = []
    for declared, name, size in re.findall(r"([\w\s*]+?)(\w+)(?:\[(\w+)\])?;", body_of(struct)):
        if size:
            count = driver_table.MAX_RANK if size == "NPU_MAX_RANK" else int(size)
            scalar = ctypes.c_char if declared.strip() == "char" else ctype_of(declared)
            expected.append((name, scalar * count))
        else:
            expected.append((name, ctype_of(declared)))
    assert [tuple(item) for item in STRUCTS[struct]._fields_] == expected


@pytest.mark.parametrize(
    "enum, prefix",
    [(driver_table.Status, "NPU_"), (driver_table.Dtype, "NPU_DTYPE_"),
     (driver_table.Direction, "NPU_")],
    ids=["status", "dtype", "direction"],
)  # fmt: skip
def test_numbers_are_the_headers(enum, prefix):
    for item in enum:
        assert re.search(rf"\b{prefix}{item.name} = {item.value}\b", TEXT), item


def test_constants_are_the_headers():
    assert f"#define NPU_DRIVER_ABI_VERSION {driver_table.ABI_VERSION}\n" in HEADER
    assert f"#define NPU_MAX_RANK {driver_table.MAX_RANK}\n" in HEADER
