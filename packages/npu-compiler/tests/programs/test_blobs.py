"""Blobs ahead of time: which is imported, and why a program is compiled instead."""

from __future__ import annotations

import dataclasses

import pytest

from npu_compiler.programs.blobs import AheadBlob, AheadBlobs, fingerprint, read_blob_records


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.xml"
    path.write_text("<net/>")
    return path


@pytest.fixture
def record(tmp_path, model):
    blob = tmp_path / "model.blob"
    blob.write_bytes(b"blob")
    return AheadBlob(
        target="4000",
        program="model",
        compiler="fake-1",
        model=fingerprint(model),
        file=blob.name,
        blob=fingerprint(blob),
    )


def load(blobs, model):
    """The source of the program, "blob" or "compiled", and the reason."""
    served = blobs.load("model", model, lambda path: path.read_bytes().decode(), lambda: "compiled")
    return served, blobs.compiled_because


@pytest.mark.parametrize("architecture", ["4000", "NPU4000"])
def test_blob_of_this_npu_is_imported(tmp_path, model, record, architecture):
    blobs = AheadBlobs(tmp_path, [record], architecture)
    assert load(blobs, model) == ("blob", None)


def test_another_device_ignores_them(tmp_path, model, record):
    assert load(AheadBlobs(tmp_path, [record], ""), model) == ("compiled", None)


def test_folder_without_blobs_has_no_reason(tmp_path, model):
    assert load(AheadBlobs(tmp_path, [], "4000"), model) == ("compiled", None)


def spoil_model(tmp_path, record):
    (tmp_path / "model.xml").write_text("<other/>")
    return record


def spoil_blob(tmp_path, record):
    (tmp_path / record.file).write_bytes(b"blub")
    return record


def remove_blob(tmp_path, record):
    (tmp_path / record.file).unlink()
    return record


def refuse(tmp_path, record):
    return dataclasses.replace(record, file="", blob={}, refused="[pass] cannot split")


def make_for_another(tmp_path, record):
    return dataclasses.replace(record, target="5010")


@pytest.mark.parametrize(
    "change, reason",
    [
        (spoil_model, "its blob is of another program"),
        (spoil_blob, "model.blob does not match its checksum"),
        (remove_blob, "model.blob cannot be read: No such file or directory"),
        (refuse, "the compiler fake-1 refused it: [pass] cannot split"),
        (make_for_another, "its blobs are for 5010, and the device is NPU 4000"),
    ],
)
def test_reason_for_compiling_is_kept_and_logged(tmp_path, model, record, caplog, change, reason):
    blobs = AheadBlobs(tmp_path, [change(tmp_path, record)], "4000")
    assert load(blobs, model) == ("compiled", reason)
    assert reason in caplog.text


def test_blob_that_the_device_does_not_take_is_compiled(tmp_path, model, record):
    def fail(path):
        raise RuntimeError("version 7\nis too new")

    blobs = AheadBlobs(tmp_path, [record], "4000")
    assert blobs.load("model", model, fail, lambda: "compiled") == "compiled"
    expected = "the device does not take model.blob: version 7 is too new"
    assert blobs.compiled_because == expected


def test_records_are_read_as_they_were_written(record):
    assert read_blob_records([dataclasses.asdict(record)]) == (record,)


@pytest.mark.parametrize(
    "change", [{"target": 4000}, {"file": "/etc/passwd"}, {"file": "../x"}, {"unknown": 1}]
)
def test_records_of_other_kinds_are_refused(record, change):
    with pytest.raises(TypeError):
        read_blob_records([dataclasses.asdict(record) | change])
