"""Runs Intel's NPU compiler, a Linux library with the VCL interface, for a parent process.

The protocol is that of vcl_client.c, the client of the Windows library. This file runs as a script
and imports nothing of the platform, so that the compiler has a process without torch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

_LOG_INFO = 4


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint16), ("minor", ctypes.c_uint16)]


class _Compiler(ctypes.Structure):
    _fields_ = [("version", _Version), ("log_level", ctypes.c_int)]


class _Device(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("id", ctypes.c_uint32),
        ("revision", ctypes.c_uint16),
        ("tiles", ctypes.c_uint32),
    ]


class _Properties(ctypes.Structure):
    _fields_ = [("id", ctypes.c_char_p), ("version", _Version), ("opset", ctypes.c_uint32)]


class _Request(ctypes.Structure):
    _fields_ = [
        ("ir", ctypes.c_void_p),
        ("ir_bytes", ctypes.c_uint64),
        ("flags", ctypes.c_char_p),
        ("flags_bytes", ctypes.c_uint64),
    ]


_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Allocator(ctypes.Structure):
    _fields_ = [("allocate", _Allocate), ("release", _Release)]


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_uint64]
_libc.free.argtypes = [ctypes.c_void_p]
_allocator = _Allocator(
    _Allocate(lambda _, size: _libc.malloc(size)), _Release(lambda _, memory: _libc.free(memory))
)


def main() -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the compiler prints

    def put(*fields: object) -> None:
        print(*fields, sep="\t", file=answers, flush=True)

    try:
        library = ctypes.CDLL(sys.stdin.readline().rstrip("\n"))
        compiler, log = _create(library, put)
    except (OSError, AttributeError, RuntimeError, ValueError) as failure:
        put("error", " ".join(str(failure).split()), 0)
        sys.exit(1)
    for line in sys.stdin:
        ir, flags, blob, text = line.rstrip("\n").split("\t")
        try:
            with Path(ir).open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
            code, size = _compile(library, compiler, content, Path(flags), Path(blob))
        except (OSError, ValueError) as failure:
            put("error", failure, 0)
            continue
        _write_log(library, log, Path(text))
        put("done", f"{code & 0xFFFFFFFF:x}", size)


def _create(library: ctypes.CDLL, put) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:  # type: ignore[no-untyped-def]
    api, profiling = _Version(), _Version()
    library.vclGetVersion(ctypes.byref(api), ctypes.byref(profiling))
    described = _Compiler(api, _LOG_INFO)
    device = _Device(ctypes.sizeof(_Device), 0, 0xFFFF, 0xFFFFFFFF)
    compiler, log = ctypes.c_void_p(), ctypes.c_void_p()
    code = library.vclCompilerCreate(
        ctypes.byref(described), ctypes.byref(device), ctypes.byref(compiler), ctypes.byref(log)
    )
    if code:
        raise RuntimeError(f"vclCompilerCreate failed: {code & 0xFFFFFFFF:#x}")
    found = _Properties()
    code = library.vclCompilerGetProperties(compiler, ctypes.byref(found))
    if code:
        raise RuntimeError(f"vclCompilerGetProperties failed: {code & 0xFFFFFFFF:#x}")
    format_ = f"{found.version.major}.{found.version.minor}"
    put("ready", found.id.decode(errors="replace"), format_, found.opset)
    return compiler, log


def _compile(
    library: ctypes.CDLL, compiler: ctypes.c_void_p, ir: mmap.mmap, flags: Path, blob: Path
) -> tuple[int, int]:
    options = flags.read_bytes()
    first = ctypes.addressof(ctypes.c_char.from_buffer(ir))
    request = _Request(first, len(ir), options, len(options))
    made, size = ctypes.c_void_p(), ctypes.c_uint64()
    library.vclAllocatedExecutableCreate2.argtypes = [
        ctypes.c_void_p, _Request, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    code = library.vclAllocatedExecutableCreate2(
        compiler, request, ctypes.addressof(_allocator), ctypes.addressof(made),
        ctypes.addressof(size),
    )  # fmt: skip
    if not code and made.value:
        content = (ctypes.c_char * size.value).from_address(made.value)
        try:
            blob.write_bytes(content)
        finally:
            _libc.free(made)
    return int(code), int(size.value)


def _write_log(library: ctypes.CDLL, log: ctypes.c_void_p, path: Path) -> None:
    size = ctypes.c_uint64()
    if (
        not log.value
        or library.vclLogHandleGetString(log, ctypes.byref(size), None)
        or not size.value
    ):
        return
    text = ctypes.create_string_buffer(size.value + 1)
    if not library.vclLogHandleGetString(log, ctypes.byref(size), text):
        path.write_bytes(text.value)


if __name__ == "__main__":
    main()
