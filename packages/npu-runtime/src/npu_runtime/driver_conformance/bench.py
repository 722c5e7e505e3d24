"""The bench: a driver under test with memory, streams, events and programs, and its rules."""

import ctypes
import mmap
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_int, c_int32, c_int64, c_long, c_size_t, c_void_p
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npu_runtime.driver_conformance.driver_table import (
    DONE,
    Direction,
    DriverTable,
    Dtype,
    Option,
    Port,
    ProgramSource,
    Status,
)
from npu_runtime.driver_conformance.isolation import LastCall
from npu_runtime.driver_conformance.locate import DriverUnderTest
from npu_runtime.driver_conformance.program_set import ProgramSet, ProgramText

__all__ = [
    "NO_DONE",
    "PAGE",
    "Bench",
    "Block",
    "CheckFailure",
    "Done",
    "Unsupported",
    "expect",
    "expect_no_growth",
]

PAGE = mmap.PAGESIZE
NO_DONE = DONE()  # NULL for `done`: the call is synchronous

Floats = npt.NDArray[np.float32]

_HOST_CODE = "host code after "
_ARENA_BYTES = 1 << 36
_BUSY_BYTES = 32 << 20
_BUSY_COPIES = 8
_SENTENCE = re.compile(r"[A-Za-z_][\w:.]*: \S")
_GROWTH_BATCHES = 4
_GROWTH_ATTEMPTS = 3  # the system reclaims pages on its own; a leak grows in every batch
_LEAST_BYTES = 32  # minimum size of one leaked object, with malloc's overhead


class CheckFailure(Exception):
    """The driver broke a rule.

    Args:
        reason: the observation and the rule.
        function: the table field that broke it, if it is not the one under test.
    """

    def __init__(self, reason: str, *, function: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.function = function


class Unsupported(Exception):
    """The driver omits an optional part of the interface; the text explains which."""


def expect(holds: bool, reason: str) -> None:
    """Fails the check with ``reason`` unless ``holds``."""
    if not holds:
        raise CheckFailure(reason)


@dataclass(frozen=True)
class Block:
    """A committed block of device memory."""

    address: int
    size_bytes: int


@dataclass
class Done:
    """An ``npu_done`` that records its calls in order."""

    calls: list[tuple[int, int, str]] = field(default_factory=list)  # context, status, message

    def __post_init__(self) -> None:
        self.callback = DONE(self._called)

    def _called(self, context: int | None, status: int, message: bytes | None) -> None:
        self.calls.append((context or 0, status, (message or b"").decode(errors="replace")))

    @property
    def contexts(self) -> list[int]:
        """The contexts so far."""
        return [context for context, _, _ in self.calls]


class Bench:
    """The table of one driver in this process, with helpers for the checks.

    Args:
        driver: which.
        last_call: receives the name of each function before its call.
    """

    def __init__(self, driver: DriverUnderTest, last_call: LastCall) -> None:
        self.driver = driver
        self._last_call = last_call
        last_call.set("npu_driver_table")
        address = driver.table_address()
        if not address:
            raise CheckFailure("npu_driver_table gave NULL", function="npu_driver_table")
        self.table = DriverTable.from_address(address)
        self._next = self._end = 0
        self._busy_blocks: list[Block] = []
        self._kept: list[object] = []  # objects that the driver may still point to

    # --- calls of the table

    def has(self, function: str) -> bool:
        """Whether the table has this function (not NULL)."""
        return bool(getattr(self.table, function))

    def call(self, function: str, *arguments: Any) -> Any:
        """Calls a function of the table; returns its result."""
        if not self.has(function):
            raise CheckFailure("the function is NULL", function=function)
        self._last_call.set(function)
        return getattr(self.table, function)(*arguments)

    def must(self, function: str, *arguments: Any) -> None:
        """Calls a function with valid arguments; the check fails unless it returns NPU_OK."""
        status = self.call(function, *arguments)
        if status != Status.OK:
            raise CheckFailure(
                f"gave {status_name(status)}: {self.last_error()}", function=function
            )

    def refuses(
        self, function: str, *arguments: Any, what: str, status: Status = Status.ERROR_ARGUMENT
    ) -> None:
        """Calls a function with an invalid argument (`what`, in the report); it must fail."""
        got = self.call(function, *arguments)
        expect(
            got == status,
            f"gave {status_name(got)} for {what}; the rule is {status_name(status)}",
        )
        self.expect_sentence()

    def fails(self, function: str, *arguments: Any, what: str) -> None:
        """Like ``refuses``, but the driver chooses the status."""
        got = self.call(function, *arguments)
        expect(got != Status.OK, f"gave NPU_OK for {what}")
        self.expect_sentence()

    def last_error(self) -> str:
        """Returns the calling thread's error message."""
        text = self.call("last_error")
        if text is None:
            raise CheckFailure("gave NULL", function="last_error")
        return bytes(text).decode(errors="replace")

    def expect_sentence(self) -> None:
        """Requires that the latest failure left a message that names the call."""
        text = self.last_error()
        if not _SENTENCE.match(text) or "\n" in text:
            raise CheckFailure(
                f'after a failure the message must be "call: what went wrong", got {text!r}'
            )

    # --- opening and memory

    def open(self) -> None:
        """Opens the driver and attaches a range of addresses."""
        library, device = self.driver.vendor_library, self.driver.device
        self.must("open", library and library.encode(), device and device.encode())
        begin = self.reserve(_ARENA_BYTES)
        self.must("memory_attach", begin, _ARENA_BYTES)
        self._next, self._end = begin, begin + _ARENA_BYTES

    def reserve(self, size_bytes: int) -> int:
        """Reserves addresses as the runtime does, without access or memory."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = c_void_p
        libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
        no_reserve = 0x4000
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        begin = libc.mmap(None, size_bytes, 0, flags, -1, 0)
        if begin in (None, c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"no {size_bytes} bytes of addresses to reserve")
        return int(begin)

    def take_addresses(self, size_bytes: int) -> Block:
        """Returns the next uncommitted part of the attached range."""
        size = -(-max(size_bytes, 1) // PAGE) * PAGE
        block = Block(self._next, size)
        self._next += size
        expect(self._next <= self._end, "the test used up its range of addresses")
        return block

    def commit(self, size_bytes: int) -> Block:
        """Commits a new block of device memory, in whole pages."""
        block = self.take_addresses(size_bytes)
        self.must("memory_commit", 0, block.address, block.size_bytes)
        return block

    def write(self, block: Block, data: bytes, *, offset: int = 0) -> None:
        """Writes into a block from the host, inside a window."""
        self.begin_access(block)
        self.note_host_access()
        ctypes.memmove(block.address + offset, data, len(data))
        self.end_access(block)

    def read(self, block: Block, size_bytes: int, *, offset: int = 0) -> bytes:
        """Reads a block from the host, inside a window."""
        self.begin_access(block)
        self.note_host_access()
        data = ctypes.string_at(block.address + offset, size_bytes)
        self.end_access(block)
        return data

    def note_host_access(self) -> None:
        """Notes, for crash reports, that host code accesses device memory next."""
        function = self._last_call.get().removeprefix(_HOST_CODE)
        self._last_call.set(_HOST_CODE + function)

    def begin_access(self, block: Block) -> None:
        """Opens a window if the driver has windows."""
        if self.has("host_access_begin"):
            self.must("host_access_begin", 0, block.address, block.size_bytes)

    def end_access(self, block: Block) -> None:
        """Closes it."""
        if self.has("host_access_end"):
            self.must("host_access_end", 0, block.address, block.size_bytes)

    def floats(self, values: Sequence[float] | Floats) -> Block:
        """Returns a new block with these float32 values."""
        data = np.asarray(values, np.float32)
        block = self.commit(data.nbytes)
        self.write(block, data.tobytes())
        return block

    def read_floats(self, block: Block, count: int) -> Floats:
        """Returns the first float32 values of a block."""
        return np.frombuffer(self.read(block, 4 * count), np.float32)

    def copy(self, stream: c_void_p, to: Block, source: Block, size_bytes: int) -> None:
        """Copies, and waits."""
        self.must("memory_copy", stream, to.address, source.address, size_bytes, NO_DONE, None)

    # --- streams and events

    def device_count(self) -> int:
        """Returns the number of the driver's devices."""
        count = c_int32(-1)
        self.must("device_count", byref(count))
        return count.value

    def stream(self, *, priority: int = 0) -> c_void_p:
        """Creates a stream of device 0."""
        return self._made("stream_create", 0, priority)

    def event(self) -> c_void_p:
        """Creates an event of device 0."""
        return self._made("event_create", 0)

    def is_idle(self, stream: c_void_p) -> bool:
        """Whether a stream is idle."""
        return self._flag("stream_query", stream)

    def is_done(self, event: c_void_p) -> bool:
        """Whether an event is done."""
        return self._flag("event_query", event)

    def event_time_ns(self, event: c_void_p) -> int:
        """Returns the completion time of an event."""
        time_ns = c_int64(-1)
        self.must("event_time_ns", event, byref(time_ns))
        return time_ns.value

    def done(self) -> Done:
        """Creates a callback that lives as long as the bench."""
        made = Done()
        self._kept.append(made)
        return made

    def enqueue_busy_work(self, stream: c_void_p) -> Done:
        """Enqueues copies that take milliseconds, each with a call of the Done.

        They need not be complete when this returns, but may be.
        """
        if not self._busy_blocks:
            self._busy_blocks = [self.commit(_BUSY_BYTES) for _ in range(2)]
            self.write(self._busy_blocks[0], b"\1" * _BUSY_BYTES)
        one, other = self._busy_blocks
        done = self.done()
        for number in range(_BUSY_COPIES):
            to, source = (other, one) if number % 2 == 0 else (one, other)
            self.must(
                "memory_copy", stream, to.address, source.address, _BUSY_BYTES, done.callback,
                number + 1,
            )  # fmt: skip
        return done

    def expect_all_done(self, done: Done, after: str) -> None:
        """Requires one callback for each piece of the busy work, in order."""
        expected = list(range(1, _BUSY_COPIES + 1))
        expect(
            done.contexts == expected,
            f"after {after}, `done` was called for {done.contexts} of {expected}",
        )

    def is_busy_work_over(self, done: Done) -> bool:
        """Whether every piece of the busy work called back."""
        return len(done.calls) >= _BUSY_COPIES

    # --- programs

    def programs(self) -> ProgramSet:
        """The driver's program set."""
        if self.driver.programs is None:
            raise CheckFailure(f"there is no program to run: {self.driver.no_programs}")
        return self.driver.programs

    def optional_program(self, name: str) -> ProgramText:
        """Returns a program that the set may omit."""
        program = getattr(self.programs(), name)
        if program is None:
            raise Unsupported(f"the driver's program set has no {name}")
        assert isinstance(program, ProgramText)
        return program

    def source(
        self, program: ProgramText, *, options: Mapping[str, str] | None = None
    ) -> ProgramSource:
        """Returns a program source in memory."""
        given = program.options if options is None else options
        pairs = [Option(key.encode(), value.encode()) for key, value in given.items()]
        array = (Option * len(pairs))(*pairs)
        weights = ctypes.create_string_buffer(program.weights, max(1, len(program.weights)))
        self._kept += [array, weights, program]
        return ProgramSource(
            model=program.model,
            model_bytes=len(program.model),
            weights=ctypes.cast(weights, c_void_p) if program.weights else None,
            weights_bytes=len(program.weights),
            options=array,
            option_count=len(pairs),
        )

    def file_source(self, program: ProgramText) -> ProgramSource:
        """Returns a program source in a file, with its weights next to it."""
        folder = Path(tempfile.mkdtemp(prefix="npu-conformance-"))
        path = folder / f"program{self.programs().model_suffix}"
        path.write_bytes(program.model)
        if program.weights:
            path.with_suffix(self.programs().weights_suffix).write_bytes(program.weights)
        source = self.source(program)
        source.model, source.model_bytes, source.weights, source.weights_bytes = None, 0, None, 0
        source.path = str(path).encode()
        return source

    def load(self, program: ProgramText, *, options: Mapping[str, str] | None = None) -> c_void_p:
        """Loads a program on device 0."""
        return self._made("program_load", 0, byref(self.source(program, options=options)))

    def request(self, program: c_void_p) -> c_void_p:
        """Creates a request."""
        return self._made("request_create", program)

    def port(self, program: c_void_p, direction: Direction, index: int) -> Port:
        """Returns a port."""
        port = Port()
        self.must("program_port", program, direction, index, byref(port))
        return port

    def bind(
        self, request: c_void_p, direction: Direction, index: int, block: Block, dims: Sequence[int]
    ) -> None:
        """Binds a block with float32 values."""
        self.must(
            "request_bind", request, direction, index, Dtype.FLOAT32, len(dims),
            (c_int64 * len(dims))(*dims), block.address,
        )  # fmt: skip

    def run(self, request: c_void_p, stream: c_void_p) -> None:
        """Runs, and waits."""
        self.must("request_run", request, stream, NO_DONE, None)

    def output(self, request: c_void_p, index: int) -> tuple[list[int], Floats]:
        """Returns the dims and values of a run's output."""
        port, data = Port(), c_void_p()
        self.must("request_output", request, index, byref(port), byref(data))
        dims = list(port.dims[: port.rank])
        count = int(np.prod(dims, dtype=np.int64))
        expect(port.dtype == Dtype.FLOAT32, f"gave npu_dtype {port.dtype}; the program has float32")
        expect(count == 0 or bool(data.value), "gave NULL for an output with elements")
        text = ctypes.string_at(data.value, 4 * count) if count and data.value else b""
        return dims, np.frombuffer(text, np.float32)

    # --- shared by the above

    def _made(self, function: str, *arguments: Any) -> c_void_p:
        handle = c_void_p()
        self.must(function, *arguments, byref(handle))
        if not handle.value:
            raise CheckFailure("gave NPU_OK and a NULL handle", function=function)
        return handle

    def _flag(self, function: str, handle: c_void_p) -> bool:
        flag = c_int32(-1)
        self.must(function, handle, byref(flag))
        if flag.value not in (0, 1):
            raise CheckFailure(f"gave {flag.value}; the rule is 0 or 1", function=function)
        return flag.value == 1


def status_name(status: int) -> str:
    """Returns the status's name in the header."""
    known = {int(item): f"NPU_{item.name}" for item in Status}
    return known.get(status, f"npu_status {status}")


def expect_no_growth(repeat: Callable[[], None], *, times: int, what: str) -> None:
    """Repeats a create-and-destroy cycle; fails if every batch leaks memory.

    `times` is large enough for the smallest object to be visible; `what` is for the report.
    """
    for _ in range(times):
        repeat()  # caches and pools fill up
    grown = 0
    for _ in range(_GROWTH_ATTEMPTS):
        grown = _growth(repeat, times)
        if grown <= _GROWTH_BATCHES * times * _LEAST_BYTES:
            return
    raise CheckFailure(
        f"{_GROWTH_BATCHES * times} times making and destroying {what} left {grown:,} bytes behind"
    )


def _growth(repeat: Callable[[], None], times: int) -> int:
    """Returns the bytes leaked by all batches; 0 if one of them leaked none."""
    held = [_resident_bytes()]
    for _ in range(_GROWTH_BATCHES):
        for _ in range(times):
            repeat()
        held.append(_resident_bytes())
    always = all(after > before for before, after in pairwise(held))
    return held[-1] - held[0] if always else 0


def _resident_bytes() -> int:
    """Returns the exact resident size; /proc/self/statm is approximate."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup must have a line Rss, got none.")
