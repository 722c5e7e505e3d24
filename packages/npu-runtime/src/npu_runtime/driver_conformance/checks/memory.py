"""Memory checks: committed pages, host windows, and copies."""

import ctypes

import numpy as np

from npu_command.host_memory import resident_bytes
from npu_runtime.driver_conformance.bench import NO_DONE, PAGE, Bench, Unsupported, expect
from npu_runtime.driver_conformance.driver_table import NULLABLE, Status
from npu_runtime.driver_conformance.registry import check

__all__: list[str] = []


@check("memory_commit")
def makes_memory_that_holds_bytes(bench: Bench) -> None:
    """First page, last page, and each of several blocks keep the written bytes."""
    blocks = [bench.commit(size) for size in (PAGE, 3 * PAGE, 5 << 20)]
    for number, block in enumerate(blocks, start=1):
        bench.write(block, bytes([number]) * 16)
        bench.write(block, bytes([number + 100]) * 16, offset=block.size_bytes - 16)
    for number, block in enumerate(blocks, start=1):
        expect(bench.read(block, 16) == bytes([number]) * 16, "a block lost its first bytes")
        last = bench.read(block, 16, offset=block.size_bytes - 16)
        expect(last == bytes([number + 100]) * 16, "a block lost its last bytes")


@check("memory_commit")
def refuses_what_is_not_whole_pages(bench: Bench) -> None:
    """Both the address and the size are multiples of the page size."""
    block = bench.take_addresses(4 * PAGE)
    bench.refuses("memory_commit", 0, block.address + 64, PAGE, what="an address inside a page")
    bench.refuses("memory_commit", 0, block.address, PAGE + 64, what="a part of a page")


@check("memory_commit")
def refuses_addresses_that_were_not_attached(bench: Bench) -> None:
    """Addresses outside the attached range are refused."""
    outside = bench.reserve(PAGE)
    bench.refuses("memory_commit", 0, outside, PAGE, what="an address outside the range")


@check("memory_commit", is_open=True)
def refuses_a_device_that_does_not_exist(bench: Bench) -> None:
    """One past the last."""
    block = bench.take_addresses(PAGE)
    index = bench.device_count()
    bench.refuses("memory_commit", index, block.address, PAGE, what=f"device {index}")


@check("memory_decommit")
def gives_memory_back(bench: Bench) -> None:
    """Releasing memory reduces the process's memory, if committing increased it."""
    size_bytes = 64 << 20
    before = resident_bytes()[0]
    block = bench.commit(size_bytes)
    bench.write(block, b"\1" * size_bytes)
    held = resident_bytes()[0] - before
    bench.must("memory_decommit", 0, block.address, block.size_bytes)
    left = resident_bytes()[0] - before
    expect(
        held < size_bytes // 2 or left < size_bytes // 4,
        f"of {held >> 20} MiB that the block took, {left >> 20} MiB are still held",
    )


@check("memory_decommit")
def leaves_the_neighbours_alone(bench: Bench) -> None:
    """Only the named pages lose their contents."""
    blocks = [bench.commit(PAGE) for _ in range(3)]
    for block in blocks:
        bench.write(block, b"kept")
    bench.must("memory_decommit", 0, blocks[1].address, PAGE)
    for block in (blocks[0], blocks[2]):
        expect(bench.read(block, 4) == b"kept", "a neighbouring block lost its contents")


@check("memory_decommit")
def leaves_addresses_that_can_be_committed_again(bench: Bench) -> None:
    """The runtime reuses address ranges many times."""
    block = bench.commit(4 * PAGE)
    for number in range(3):
        bench.write(block, bytes([number]) * 8, offset=PAGE)
        bench.must("memory_decommit", 0, block.address, block.size_bytes)
        bench.must("memory_commit", 0, block.address, block.size_bytes)
    bench.write(block, b"again")
    expect(bench.read(block, 5) == b"again", "memory that was committed again holds nothing")


@check("memory_decommit")
def refuses_another_device_or_range(bench: Bench) -> None:
    """A device one past the last; addresses outside the range."""
    block = bench.commit(PAGE)
    index = bench.device_count()
    bench.refuses("memory_decommit", index, block.address, PAGE, what=f"device {index}")
    outside = bench.reserve(PAGE)
    bench.refuses("memory_decommit", 0, outside, PAGE, what="an address outside the range")


def _windows(bench: Bench) -> None:
    """Skips the check if the driver has no windows."""
    expect_both_or_neither(bench)
    if not bench.has("host_access_begin"):
        raise Unsupported("NULL: the host may always use device memory")


def expect_both_or_neither(bench: Bench) -> None:
    """Fails if only one of the two functions exists."""
    missing = [name for name in NULLABLE if not bench.has(name)]
    expect(len(missing) != 1, f"only {', '.join(missing)} is NULL; the rule is both or neither")


@check("host_access_begin")
def is_null_only_where_the_host_may_always_write(bench: Bench) -> None:
    """Without windows, host code can write and read right after the commit."""
    expect_both_or_neither(bench)
    if not bench.has("host_access_begin"):
        block = bench.commit(PAGE)
        bench.note_host_access()
        ctypes.memset(block.address, 7, PAGE)
        expect(ctypes.string_at(block.address, 1) == b"\7", "memory without windows lost a byte")
    _windows(bench)


@check("host_access_begin")
def opens_a_window_for_the_host(bench: Bench) -> None:
    """The device reads bytes that the host wrote in a window, and the host reads the device's."""
    _windows(bench)
    stream = bench.stream()
    one, other = bench.commit(2 * PAGE), bench.commit(2 * PAGE)
    bench.write(one, b"from the host", offset=PAGE)
    bench.copy(stream, other, one, 2 * PAGE)
    expect(bench.read(other, 13, offset=PAGE) == b"from the host", "the device read something else")


@check("host_access_begin")
def refuses_another_device(bench: Bench) -> None:
    """One past the last."""
    _windows(bench)
    block, index = bench.commit(PAGE), bench.device_count()
    bench.refuses("host_access_begin", index, block.address, PAGE, what=f"device {index}")


@check("host_access_end")
def keeps_the_outer_window_open(bench: Bench) -> None:
    """Windows of one block nest: the inner end does not close the outer one."""
    _windows(bench)
    block = bench.commit(PAGE)
    for _ in range(2):
        bench.begin_access(block)
    bench.end_access(block)
    bench.note_host_access()
    ctypes.memset(block.address, 9, 8)  # a closed window would end this process with a signal
    bench.end_access(block)
    expect(bench.read(block, 8) == b"\x09" * 8, "bytes written in the outer window are lost")


@check("host_access_end")
def refuses_an_end_without_a_begin(bench: Bench) -> None:
    """Mistakes of the runtime must not pass silently."""
    _windows(bench)
    block = bench.commit(PAGE)
    bench.refuses("host_access_end", 0, block.address, PAGE, what="a block without a window")
    bench.write(block, b"x")
    bench.refuses("host_access_end", 0, block.address, PAGE, what="a window that was closed")


def _pattern(size_bytes: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8).tobytes()


@check("memory_copy")
def copies_before_it_returns_without_done(bench: Bench) -> None:
    """Whole blocks, odd sizes and odd addresses."""
    stream = bench.stream()
    one, other = bench.commit(1 << 20), bench.commit(1 << 20)
    data = _pattern(1 << 20, seed=1)
    bench.write(one, data)
    for offset, size in ((0, 1 << 20), (3, 5), (4097, 70001)):
        bench.write(other, b"\0" * (1 << 20))
        bench.must(
            "memory_copy", stream, other.address + offset, one.address + offset, size, NO_DONE, None
        )
        got = bench.read(other, 1 << 20)
        expect(got[offset : offset + size] == data[offset : offset + size], "copied other bytes")
        around = got[:offset] + got[offset + size :]
        expect(not any(around), f"wrote outside the {size} bytes at {offset}")


@check("memory_copy")
def tells_done_once_with_its_context(bench: Bench) -> None:
    """Each accepted copy calls back once, in order, with NPU_OK."""
    stream, done = bench.stream(), bench.done()
    one, other = bench.floats(range(1024)), bench.commit(4096)
    for number in range(1, 101):
        bench.must(
            "memory_copy", stream, other.address, one.address, 4096, done.callback, 1000 + number
        )
    bench.must("stream_synchronize", stream)
    expected = list(range(1001, 1101))
    expect(
        done.contexts == expected,
        f"`done` was called {len(done.calls)} times for 100 copies, or out of order",
    )
    bad = [call for call in done.calls if call[1] != Status.OK]
    expect(not bad, f"`done` reported failures: {bad[:1]}")
    expect(bench.read(other, 4096) == bench.read(one, 4096), "copied other bytes")


@check("memory_copy")
def keeps_the_order_of_its_stream(bench: Bench) -> None:
    """A chain of copies carries the first block's bytes to the last, after slow work."""
    stream = bench.stream()
    bench.enqueue_busy_work(stream)
    blocks = [bench.floats(np.full(4096, number)) for number in range(12)]
    done = bench.done()
    for number in range(1, len(blocks)):
        bench.must(
            "memory_copy", stream, blocks[number].address, blocks[number - 1].address, 4 * 4096,
            done.callback, number,
        )  # fmt: skip
    bench.must("stream_synchronize", stream)
    expect(not bench.read_floats(blocks[-1], 4096).any(), "a later copy ran before an earlier one")


@check("memory_copy")
def waits_for_earlier_work_without_done(bench: Bench) -> None:
    """The waiting call runs after the work enqueued before it."""
    stream = bench.stream()
    done = bench.enqueue_busy_work(stream)
    one, other = bench.floats([1, 2]), bench.floats([0, 0])
    bench.copy(stream, other, one, 8)
    bench.expect_all_done(done, "a copy that waits")


@check("memory_copy")
def takes_no_bytes_as_a_copy(bench: Bench) -> None:
    """A copy of 0 bytes still calls its `done`."""
    stream, done, block = bench.stream(), bench.done(), bench.commit(PAGE)
    bench.must("memory_copy", stream, block.address, block.address, 0, done.callback, 5)
    bench.must("stream_synchronize", stream)
    expect(done.contexts == [5], f"`done` was called {len(done.calls)} times")
