import threading

from npu_profiler.listeners.thread_names import ThreadNames


def test_names_of_ended_threads_are_kept():
    names = ThreadNames()
    names.start()
    thread = threading.Thread(target=int, name="short-lived")
    thread.start()
    thread.join()
    names.stop()
    assert names.get(thread.native_id) == "short-lived"


def test_a_name_given_while_running_counts():
    go = threading.Event()
    names = ThreadNames()
    names.start()
    thread = threading.Thread(target=go.wait, name="before")
    thread.start()
    thread.name = "after"
    names.stop()
    go.set()
    thread.join()
    assert names.get(thread.native_id) == "after"


def test_thread_class_is_as_before_afterwards():
    before = threading.Thread.start
    names = ThreadNames()
    names.start()
    assert threading.Thread.start is not before
    names.stop()
    assert threading.Thread.start is before


def test_thread_that_nobody_knows_has_no_name():
    assert ThreadNames().get(1 << 30) == ""
