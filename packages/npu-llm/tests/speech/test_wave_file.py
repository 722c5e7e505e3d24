import struct

import numpy as np
import pytest

from npu_llm.errors import OptionError
from npu_llm.speech.wave_file import read_wave


def write(path, data, *, kind, bits, channels=1, rate=16000, extensible=False):
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, rate, 0, 0, bits) + (
        struct.pack("<HHIH", 22, bits, 0, kind) + bytes(14) if extensible else b""
    )
    chunks = b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"LIST" + struct.pack("<I", 3) + b"abc\0"  # of odd size, so padded
    chunks += b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks)
    return path


SAMPLES = np.array([-1.0, -0.5, 0.0, 0.25, 0.75])


@pytest.mark.parametrize(
    "kind, bits, data",
    [
        (1, 8, (SAMPLES * 128 + 128).astype(np.uint8).tobytes()),
        (1, 16, (SAMPLES * 2**15).astype("<i2").tobytes()),
        (
            1,
            24,
            b"".join(int(x * 2**23).to_bytes(3, "little", signed=True) for x in SAMPLES),
        ),
        (1, 32, (SAMPLES * 2**31).astype("<i4").tobytes()),
        (3, 32, SAMPLES.astype("<f4").tobytes()),
        (3, 64, SAMPLES.astype("<f8").tobytes()),
    ],
)
@pytest.mark.parametrize("extensible", [False, True])
def test_every_kind_of_sample(tmp_path, kind, bits, data, extensible):
    path = write(tmp_path / "a.wav", data, kind=kind, bits=bits, extensible=extensible)
    found = read_wave(path, rate=16000)
    assert found.dtype == np.float32
    assert found.tolist() == SAMPLES.tolist()


def test_channels_are_averaged(tmp_path):
    data = np.array([1.0, 0.0, -0.5, 0.25, 9.0]).astype("<f4").tobytes()
    path = write(tmp_path / "a.wav", data, kind=3, bits=32, channels=2)
    assert read_wave(path, rate=16000).tolist() == [0.5, -0.125]


@pytest.mark.parametrize(
    "changes, code, quoted",
    [
        ({"rate": 8000}, "audio-rate", "8,000"),
        ({"data": b""}, "audio-empty", "must contain samples"),
        ({"data": np.array([0, np.nan], "<f4").tobytes()}, "input-not-finite", "NaN"),
        ({"bits": 12}, "audio-unreadable", "12 bits"),
        ({"channels": 0}, "audio-unreadable", "without a channel"),
    ],
)
def test_what_is_refused(tmp_path, changes, code, quoted):
    given = {"data": SAMPLES.astype("<f4").tobytes(), "kind": 3, "bits": 32} | changes
    path = write(tmp_path / "a.wav", given.pop("data"), **given)
    with pytest.raises(OptionError, match=quoted) as caught:
        read_wave(path, rate=16000)
    assert caught.value.code == code


@pytest.mark.parametrize("content", [b"", b"RIFF", b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0abc", b"ID3"])
def test_no_wave_file(tmp_path, content):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        read_wave(path, rate=16000)
    assert caught.value.code == "audio-unreadable"
