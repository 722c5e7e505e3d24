import errno
import json
import logging
import os
import shutil
import subprocess
import sys

import pytest

from npu_llm.errors import CacheError
from npu_llm.models.compile_cache import CompileCache, draft, make_key
from npu_llm.models.entry import read_entry

ABOUT = {"name": "m", "has_tokenizer": False, "context_length": 7}


def fill(folder, weights=b"weights"):
    (folder / "step.xml").write_text("<net/>")
    (folder / "step.bin").write_bytes(weights)
    (folder / "about.json").write_text(json.dumps(ABOUT))


@pytest.fixture
def cache(tmp_path):
    return CompileCache(tmp_path / "cache")


@pytest.fixture
def entry(cache):
    with cache.create("key") as folder:
        fill(folder)
    return cache.find("key")


def test_entry_is_found_with_what_its_writer_recorded(cache, entry):
    assert (entry.name, entry.context_length, entry.has_tokenizer) == ("m", 7, False)
    assert entry.model_path.read_text() == "<net/>"
    assert cache.find("other") is None


def test_entry_is_not_there_before_it_is_whole(cache, tmp_path):
    def fail_half_way():
        with cache.create("key") as folder:
            fill(folder)
            assert cache.find("key") is None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert cache.find("key") is None
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("damage", ["truncate", "change", "remove", "manifest", "no manifest"])
def test_damaged_entry_is_removed_and_said(cache, entry, damage, caplog):
    weights = entry.folder / "step.bin"
    manifest = entry.folder / "entry.json"
    if damage == "truncate":
        weights.write_bytes(b"weigh")
    elif damage == "change":
        weights.write_bytes(b"wEights")
    elif damage == "remove":
        weights.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    else:
        manifest.unlink()
    with caplog.at_level(logging.WARNING):
        assert cache.find("key") is None
    assert "damaged" in caplog.text
    assert not entry.folder.exists()


def test_large_file_that_was_touched_is_read_again(cache):
    with cache.create("large") as folder:
        fill(folder, b"x" * (5 << 20))
    weights = cache.find("large").folder / "step.bin"
    os.utime(weights)
    assert cache.find("large") is not None
    with weights.open("r+b") as file:
        file.seek(3 << 20)
        file.write(b"y")
    assert cache.find("large") is None


def test_compiled_form_stays_only_as_it_was_recorded(entry):
    form = entry.compiled
    blob = form.blobs / "1.blob"
    form.blobs.mkdir()
    blob.write_bytes(b"compiled")
    form.clear_unless_sound()
    assert not form.blobs.exists()
    form.blobs.mkdir()
    blob.write_bytes(b"compiled")
    form.record()
    form.clear_unless_sound()
    assert blob.exists()
    blob.write_bytes(b"comp1led")
    form.clear_unless_sound()
    assert not form.blobs.exists()


def test_compiled_form_beside_the_recorded_ones_is_not_trusted(entry):
    form = entry.compiled
    form.blobs.mkdir()
    (form.blobs / "1.blob").write_bytes(b"compiled")
    form.record()
    (form.blobs / "2.blob").write_bytes(b"half-written by a process that was killed")
    form.clear_unless_sound()
    assert not form.blobs.exists()


def test_copy_with_other_times_gets_them_back(entry, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(entry.folder, copy, copy_function=shutil.copy)
    weights = entry.folder / "step.bin"
    os.utime(copy / "step.bin", (1, 1))
    read_entry(copy)
    assert (copy / "step.bin").stat().st_mtime_ns == weights.stat().st_mtime_ns


def test_draft_of_another_target_is_left_alone(tmp_path):
    others = [tmp_path / ".notes.4000000.0123abcd", tmp_path / ".kept.2019.bak"]
    for other in others:
        other.mkdir()
    with draft(tmp_path / "target") as folder:
        fill(folder)
    assert all(other.is_dir() for other in others)
    assert read_entry(tmp_path / "target").name == "m"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_left_is_said_and_nothing_stays(cache, tmp_path, code):
    def fail_half_way():
        with cache.create("key") as folder:
            fill(folder)
            raise OSError(code, os.strerror(code))

    with pytest.raises(CacheError, match="must have room for the model") as caught:
        fail_half_way()
    assert caught.value.code == "cache-full"
    assert list((tmp_path / "cache").iterdir()) == []


def test_writer_that_is_killed_leaves_nothing_that_counts(cache, tmp_path):
    code = (
        "import os, signal; from pathlib import Path; "
        "from npu_llm.models.compile_cache import CompileCache\n"
        f"with CompileCache(Path({str(tmp_path / 'cache')!r})).create('key') as folder:\n"
        "    (folder / 'step.xml').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -9
    assert cache.find("key") is None
    assert len(list((tmp_path / "cache").iterdir())) == 1
    with cache.create("key") as folder:
        fill(folder)
    assert cache.find("key") is not None
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key"]


def test_two_writers_of_one_entry(cache):
    with cache.create("key") as first:
        fill(first)
        with cache.create("key") as second:
            fill(second)
    assert cache.find("key") is not None


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    draft = CompileCache(tmp_path / "file").create("key")
    with pytest.raises(CacheError, match="NPU_LLM_CACHE_DIR") as caught:
        draft.__enter__()
    assert caught.value.code == "cache-unwritable"
    assert str(tmp_path / "file") in str(caught.value)


def test_key_is_readable_and_depends_on_every_part():
    parts = {"files": [["a", 1, 2]], "precision": "int8"}
    key = make_key("SmolLM2 135M.Q4", parts)
    assert key.startswith("SmolLM2-135M-Q4-")
    assert key != make_key("SmolLM2 135M.Q4", {**parts, "precision": "int4"})
    assert key == make_key("SmolLM2 135M.Q4", dict(reversed(parts.items())))
