import mmap

from npu_profiler.listeners.process_memory import available_bytes


def test_available_bytes_falls_by_pages_that_are_touched():
    before = available_bytes()
    with mmap.mmap(-1, 512 << 20) as pages:
        pages[:] = b"x" * len(pages)
        during = available_bytes()
    assert before - during > 256 << 20
