import argparse
import json
import os
import time

import pytest

from npu_command.caches import KeptEntry, act, add_actions
from npu_command.errors import InputError

DAY_S = 86_400


@pytest.fixture
def entries(tmp_path):
    """Three of two models, last used now, 10 and 40 days ago."""

    def entry(folder, name, precision, days):
        place = tmp_path / folder
        place.mkdir()
        (place / "weights").write_bytes(b"1" * 1_500_000)
        return KeptEntry(place, name, (precision,), 1_500_000, time.time() - days * DAY_S)

    return [
        entry("small-int8-aaaaaaaa11112222", "small", "int8", 40),
        entry("small-int4-bbbbbbbb11112222", "small", "int4", 0),
        entry("large-int4-cccccccc11112222", "large", "int4", 10),
    ]


def said(capsys, entries, *words):
    parser = argparse.ArgumentParser()
    add_actions(parser)
    assert act(parser.parse_args(words), entries, entries[0].folder.parent) == 0
    return capsys.readouterr().out


def left(entries):
    return [entry.id for entry in entries if entry.folder.exists()]


def test_list_groups_by_name_and_the_latest_comes_first(capsys, entries, tmp_path):
    assert said(capsys, entries).splitlines() == [
        "small",
        "  bbbbbbbb  int4  1.5 MB  used just now",
        "  aaaaaaaa  int8  1.5 MB  used 40 days ago",
        "large",
        "  cccccccc  int4  1.5 MB  used 10 days ago",
        f"3 entries, 4.5 MB in {tmp_path}",
    ]


def test_list_for_programs(capsys, entries):
    first = json.loads(said(capsys, entries, "--json"))[0]
    assert first.pop("last_used").endswith("+00:00")
    assert first == {
        "id": "bbbbbbbb",
        "name": "small",
        "details": ["int4"],
        "size_bytes": 1_500_000,
        "folder": str(entries[1].folder),
    }


def test_prune_removes_what_is_older(capsys, entries):
    out = said(capsys, entries, "prune", "--older-than", "30d")
    assert out == "removed small aaaaaaaa\n1 entry removed, 1.5 MB freed\n"
    assert left(entries) == ["bbbbbbbb", "cccccccc"]


def test_rm_takes_an_id_or_a_name_and_counts_an_entry_once(capsys, entries):
    assert "2 entries removed, 3.0 MB freed" in said(capsys, entries, "rm", "small", "aaaaaaaa")
    assert left(entries) == ["cccccccc"]


def test_rm_of_an_unknown_name_removes_nothing(capsys, entries):
    with pytest.raises(InputError, match=r"got 'smal'\. Did you mean 'small'\?") as refused:
        said(capsys, entries, "rm", "cccccccc", "smal")
    assert refused.value.code == "kept-entry"
    assert len(left(entries)) == 3


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1.5d", "5y"])
def test_an_age_has_a_number_and_a_unit(capsys, entries, age):
    with pytest.raises(SystemExit):
        said(capsys, entries, "prune", f"--older-than={age}")
    assert f"such as 30d, got '{age}'" in capsys.readouterr().err
    assert len(left(entries)) == 3


def test_dir_is_the_folder_alone(capsys, entries, tmp_path):
    assert said(capsys, entries, "dir") == f"{tmp_path}{os.linesep}"
