"""The survey of decoders: its page, and that a dead process costs only one model."""

import os

import pytest

import decoder_survey
from decoder_survey import Finding, main, page, survey


def test_the_page_has_a_row_for_each_decoder_and_counts_verdicts():
    findings = [
        Finding("mamba", "equal", "dynamic", "", 1.25),
        Finding("other", "refused", "", "its cache is a | b [unsupported-cache]", 0.5),
    ]
    text = page(findings)
    assert "2 decoders of transformers: 1 equal, 1 refused." in text
    assert "| mamba | equal | dynamic | 1.2 |\n" in text
    assert "a \\| b [unsupported-cache] |" in text


def test_an_unknown_decoder_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["mambo"])
    assert "unknown: mambo" in capsys.readouterr().err


def test_a_model_that_ends_its_process_is_a_crash(monkeypatch):
    monkeypatch.setattr(decoder_survey, "run", os._exit)
    (found,) = survey([3])
    assert (found.verdict, found.detail) == ("crash", "its process died")
