"""`npu-compiler target`: installed and missing parts."""

from __future__ import annotations

import io
import json

import pytest

from npu_compiler.cli import main
from npu_compiler.target_compiler import sources


@pytest.fixture(autouse=True)
def _empty(tmp_path, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NPU_TARGET_COMPILER", raising=False)
    monkeypatch.setattr(sources, "_FOLDERS", ())
    monkeypatch.setattr(sources, "_WINE", ("/nowhere",))


def test_list_names_targets_and_the_commands_for_what_is_missing(capsys):
    assert main(["target", "list"]) == 0
    text = capsys.readouterr().out
    assert "lunar-lake    4000" in text
    assert "`apt-get install wine64`" in text
    assert "`npu-compiler target install`" in text
    assert main(["target", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["vendors"]["intel"]["sources"] == []
    assert [one["command"] for one in found["vendors"]["intel"]["missing"]] == [
        "apt-get install wine64", "npu-compiler target install",
    ]  # fmt: skip


def test_list_has_the_reason_why_a_compiler_does_not_start(tmp_path, monkeypatch, capsys):
    (tmp_path / "damaged.so").write_text("damaged")
    monkeypatch.setenv("NPU_TARGET_COMPILER", str(tmp_path / "damaged.so"))
    assert main(["target", "list", "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["vendors"]["intel"]["sources"]
    assert (source["kind"], source["version"]) == ("setting", "")
    assert "file too short" in source["problem"]
    assert main(["target", "list"]) == 0
    assert "does not start" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, code",
    [
        (["2025.4.1"], "target-release"),
        (["intel", "2025.4.1"], "target-release"),
        (["another", "1.0"], "unknown-target"),
        (["another"], "unknown-target"),
        (["--wheel", "none.whl"], "target-wine"),
    ],
)
def test_installation_that_fails_is_explained(words, code, capsys):
    assert main(["target", "install", *words]) == 2
    assert f"[{code}]" in capsys.readouterr().err


def test_a_release_is_removed(tmp_path, capsys):
    folder = sources.installed_folder() / "2026.4.1"
    folder.mkdir(parents=True)
    (folder / sources._DLLS[0]).touch()
    assert main(["target", "remove", "2026.4.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": "2026.4.1"}
    assert not folder.exists()


@pytest.mark.parametrize("release", ["2026.4.1", "..", ""])
def test_a_release_that_is_not_installed_is_not_removed(release, capsys):
    sources.installed_folder().mkdir(parents=True)
    assert main(["target", "remove", release]) == 2
    assert "[target-absent]" in capsys.readouterr().err
    assert sources.installed_folder().is_dir()


def test_terms_are_accepted_by_an_option_or_on_a_terminal(fake_vendor, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def install(*words, answer=""):
        monkeypatch.setattr("sys.stdin", Terminal(answer) if answer else io.StringIO())
        code = main(["target", "install", "fake", *words, "--json"])
        return code, capsys.readouterr()

    assert install()[0] == 2
    code, said = install(answer="n\n")
    assert code == 2
    assert "the fake terms" in said.err
    assert "[target-licence]" in said.err
    for words, answer in ((["--accept-licence"], ""), (["1.0"], "y\n")):
        code, said = install(*words, answer=answer)
        assert (code, json.loads(said.out)["release"]) == (0, "1.0")
