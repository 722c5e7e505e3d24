import signal
import threading
from pathlib import Path

from npu_profiler.signal_mask import signals_blocked


def test_threads_started_inside_receive_no_signal_and_ours_does_again():
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with signals_blocked():
        thread.start()
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    go.set()
    thread.join()
    assert all(blocked >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
