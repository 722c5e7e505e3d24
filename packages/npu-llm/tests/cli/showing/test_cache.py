import json
import os
import time

import pytest

from npu_llm.cli import main
from npu_llm.models.compile_cache import CompileCache


@pytest.fixture
def cache(tmp_path):
    """Two entries of one model, one damaged, a compiled form, and other files."""
    root = tmp_path / "cache"
    kept = CompileCache(root)
    for key, precision in (
        ("m-int8-1111111100000000", "int8"),
        ("m-int4-2222222200000000", "int4"),
    ):
        with kept.create(key) as folder:
            (folder / "step.bin").write_bytes(b"1" * 2_000_000)
            about = {"name": "m", "precision": precision, "pipeline": "kernels"}
            (folder / "about.json").write_text(json.dumps(about))
    with kept.create("broken-3333333300000000") as folder:
        (folder / "about.json").write_text("{}")
    (root / "broken-3333333300000000" / "entry.json").write_text("{")
    form = kept.compiled_form("exported-compiled-4444444400000000")
    form.blobs.mkdir()
    form.record()
    (root / "mine").mkdir()
    (root / "chat-history").write_text("hello\n")
    return root


def said(capsys, cache, *words):
    assert main(["cache", "--cache-dir", str(cache), *words]) == 0
    return capsys.readouterr().out


def test_a_file_is_no_cache(capsys, cache):
    with pytest.raises(SystemExit) as ended:
        main(["cache", "--cache-dir", str(cache / "chat-history")])
    assert ended.value.code == 2
    assert "must be a folder, got the file" in capsys.readouterr().err


def test_models_are_listed_by_precision_size_and_last_use(capsys, cache):
    past = time.time() - 3 * 86_400
    os.utime(cache / "m-int8-1111111100000000", (past, past))
    listed = [" ".join(line.split()) for line in said(capsys, cache).splitlines()]
    start = listed.index("m")
    assert listed[start + 1] == "22222222 int4 kernels 2.0 MB used just now"
    assert listed[start + 2] == "11111111 int8 kernels 2.0 MB used 3 days ago"
    assert "33333333 damaged - 0.0 MB used just now" in listed
    assert "44444444 compiled form - 0.0 MB used just now" in listed
    assert listed[-1] == f"4 entries, 4.0 MB in {cache}"


def test_finding_an_entry_is_a_use_of_it(capsys, cache):
    key = "m-int8-1111111100000000"
    past = time.time() - 40 * 86_400
    os.utime(cache / key, (past, past))
    CompileCache(cache).find(key)
    assert "0 entries removed" in said(capsys, cache, "prune", "--older-than", "30d")


def test_rm_by_name_leaves_the_others(capsys, cache):
    assert "2 entries removed, 4.0 MB freed" in said(capsys, cache, "rm", "m")
    assert sorted(path.name for path in cache.iterdir()) == [
        "broken-3333333300000000",
        "chat-history",
        "exported-compiled-4444444400000000",
        "mine",
    ]


def test_an_empty_cache_is_no_error(capsys, tmp_path):
    absent = tmp_path / "absent"
    assert said(capsys, absent) == f"0 entries, 0.0 MB in {absent}\n"
    assert said(capsys, absent, "dir") == f"{absent}\n"
