from pathlib import Path

import pytest

from npu_command.caches.directories import cache_directory


@pytest.mark.parametrize(
    "environment, folder",
    [
        ({"XDG_CACHE_HOME": "/c"}, "/c/npu"),
        ({"XDG_CACHE_HOME": ""}, "~/.cache/npu"),
        ({"XDG_CACHE_HOME": "beside"}, "~/.cache/npu"),  # else a cache per working directory
    ],
)
def test_caches_lie_where_the_desktops_conventions_say(environment, folder):
    assert cache_directory("npu", environment) == Path(folder).expanduser()


def test_the_environment_is_the_processs_own_by_default(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/own")
    assert cache_directory("npu") == Path("/own/npu")
