import mmap

from npu_profiler.process_memory import resident_bytes, return_memory


def test_resident_bytes_sees_pages_that_were_touched_and_returned():
    before = resident_bytes()
    with mmap.mmap(-1, 64 << 20) as pages:
        pages[:] = b"x" * len(pages)
        during = resident_bytes()
    assert during - before > 60 << 20
    assert resident_bytes() < during


def test_returning_memory_raises_it_by_nothing():
    before = resident_bytes()
    return_memory()
    assert resident_bytes() <= before + (1 << 20)
