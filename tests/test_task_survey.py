"""The survey of tasks: its page, and that its table names existing classes."""

import pytest
import transformers

import npu_llm
from task_survey import Finding, main, page
from task_table import CONFIGS, TASKS


def test_the_page_has_a_table_for_each_task_and_counts_verdicts():
    findings = [
        Finding("CTC", "hubert", "equal", "", 1.25),
        Finding("CTC", "sew", "refused", "a | b [fixed-size]", 0.5),
        Finding("MaskedLM", "bert", "equal", "", 2.0),
    ]
    text = page(findings)
    assert "3 models of transformers: 2 equal, 1 refused." in text
    assert text.index("## NPUModelForCTC") < text.index("## NPUModelForMaskedLM")
    assert "| hubert | equal | 1.2 | |" in text
    assert "a \\| b [fixed-size] |" in text


def test_an_unknown_name_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["berd"])
    assert "unknown: berd" in capsys.readouterr().err


def test_the_table_names_classes_and_configurations_that_are_there():
    for task, families in TASKS.items():
        assert hasattr(npu_llm, f"NPUModelFor{task}")
        for family in families:
            prefix, _ = CONFIGS[family]
            assert getattr(transformers, f"{prefix}Config").model_type == family
    assert {family for families in TASKS.values() for family in families} == set(CONFIGS)
