import json

from npu_llm.speech.transcript import Passage, write_transcript

PASSAGES = [Passage(" One,", 0.0, 1.25), Passage(" two\n --> end", 3661.5, 3662.0)]


def test_subtitles_number_passages_and_have_no_arrow_within():
    assert write_transcript("", PASSAGES, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,250\nOne,\n\n2\n01:01:01,500 --> 01:01:02,000\ntwo -> end"
    )
    assert write_transcript("", PASSAGES, "vtt").startswith(
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nOne,"
    )


def test_text_is_one_line_without_passages():
    assert write_transcript(" all of it", [], "txt") == "all of it"
    assert write_transcript("", PASSAGES[:1] * 2, "txt") == "One,\nOne,"


def test_json_keeps_times():
    found = json.loads(write_transcript(" Üb", PASSAGES[:1], "json"))
    assert found == {"text": "Üb", "passages": [{"start": 0.0, "end": 1.25, "text": "One,"}]}
