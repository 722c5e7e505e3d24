import pytest

from npu_runtime.plugins import observers


class Entry:
    def __init__(self, function):
        self.name = self.value = "test"
        self.load = lambda: function


@pytest.fixture
def install(monkeypatch):
    def run(*functions):
        entries = [Entry(function) for function in functions]
        monkeypatch.setattr(observers.importlib.metadata, "entry_points", lambda group: entries)
        observers.install_observers()

    return run


def test_each_observer_is_called(install):
    called = []
    install(lambda: called.append(1), lambda: called.append(2))
    assert called == [1, 2]


def test_an_observer_that_fails_is_a_warning_and_the_next_is_called(install):
    def fail():
        raise OSError("no")

    called = []
    with pytest.warns(RuntimeWarning, match=r"OSError: no.*\[observer\]"):
        install(fail, lambda: called.append(1))
    assert called == [1]
