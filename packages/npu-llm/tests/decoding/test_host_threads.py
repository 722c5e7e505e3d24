"""torch's own ops between two steps run on one thread, and elsewhere as before."""

import threading

import pytest
import torch

from npu_llm.decoding.host_threads import one_thread


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_number_of_threads_is_one_inside_and_returns_after_an_error():
    with one_thread():
        assert torch.get_num_threads() == 1
    with pytest.raises(KeyError), one_thread():
        {}["missing"]
    assert torch.get_num_threads() == 2


def test_other_threads_keep_theirs():
    seen, entered, left = [], threading.Event(), threading.Event()

    def other():
        seen.append(torch.get_num_threads())
        entered.set()
        left.wait(10)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with one_thread():
        left.set()
        thread.join()
    assert seen == [2, 2]
