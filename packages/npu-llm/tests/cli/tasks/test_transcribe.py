import json
import re
import wave

import numpy as np
import pytest

from npu_llm import NPUModelForSpeechSeq2Seq


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """Files of 5 seconds, 35 seconds, another rate, and without samples."""
    folder = tmp_path_factory.mktemp("sounds")
    for name, seconds, rate in (
        ("short", 5, 16000), ("long", 35, 16000), ("slow", 1, 8000), ("empty", 0, 16000),
    ):  # fmt: skip
        at = np.arange(seconds * rate) / rate
        sound = np.sin(2 * np.pi * (200 + 40 * np.floor(at)) * at) * 8000
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(sound.astype("<i2").tobytes())
    return folder


@pytest.fixture
def run(whisper, run_task, shared):
    shared.load(NPUModelForSpeechSeq2Seq, whisper, dtype="float32")
    return lambda *arguments, model=whisper: run_task("transcribe", model, *arguments)


def test_formats_hold_the_same_words(run, sounds):
    code, text, err = run("--language", "en", "--timestamps", "segment", sounds / "long.wav")
    assert code == 0, err
    assert "times real time" in err
    _, found, again = run(
        "--language", "en", "--timestamps", "segment", "--format", "json", sounds / "long.wav"
    )
    assert "started from the compile cache" in again
    passages = json.loads(found)["passages"]
    assert text.split() == " ".join(each["text"] for each in passages).split()
    assert passages[-1]["end"] <= 35.0
    _, subtitles, _ = run("--language", "en", "--format", "srt", sounds / "long.wav")
    assert len(re.findall(r"\d\d:\d\d:\d\d,\d{3} --> ", subtitles)) == len(passages)


def test_words_have_times_within_the_sound(run, sounds):
    _, found, _ = run(
        "--language", "en", "--timestamps", "word", "--format", "json", sounds / "short.wav"
    )
    words = json.loads(found)["passages"]
    assert words
    assert all(0 <= word["start"] <= word["end"] <= 5.0 for word in words)


@pytest.mark.parametrize("beams", [1, 3])
def test_terminal_shows_how_far_it_is_and_gets_the_same_words(run, sounds, beams, monkeypatch):
    asked = ("--language", "en", "--beams", beams, sounds / "long.wav")
    _, expected, _ = run(*asked)
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as far as rich is concerned
    code, found, err = run(*asked)
    assert code == 0, err
    assert found == expected
    assert " %" in err


@pytest.mark.parametrize("name, code", [("slow.wav", "audio-rate"), ("empty.wav", "audio-empty")])
def test_sound_that_does_not_fit_is_one_sentence(run, sounds, name, code):
    status, out, err = run(sounds / name)
    assert status != 0
    assert out == ""
    assert err.rstrip().endswith(f"[{code}]")
    assert name in err


def test_missing_file_is_refused_before_the_model(run):
    status, _, err = run("/nowhere/said.wav", model="/nowhere/model")
    assert status != 0
    assert "/nowhere/said.wav" in err
    assert "audio-unreadable" in err


def test_unknown_language_and_missing_processor(run, sounds, whisper, tmp_path):
    _, _, err = run("--language", "klingon", sounds / "short.wav")
    assert "[speech-option]" in err
    assert "klingon" in err
    for missing, named in (("preprocessor", "a feature extractor"), ("tokenizer", "a tokenizer")):
        folder = tmp_path / missing
        folder.mkdir()
        for file in whisper.iterdir():
            if not file.name.startswith(missing):
                (folder / file.name).write_bytes(file.read_bytes())
        _, _, err = run(sounds / "short.wav", model=folder)
        assert "[missing-processor]" in err
        assert named in err
