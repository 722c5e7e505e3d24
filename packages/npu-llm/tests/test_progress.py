import pytest

from npu_llm.progress import MERGE_STAGES, STAGES, Progress


def test_a_stage_reports_its_start_its_shares_and_its_end():
    seen = []
    progress = Progress(lambda stage, share: seen.append((stage.name, share)))
    with progress.stage("weights"):
        progress.advance(0.5)
        progress.advance(7)
    progress.advance(0.3)
    assert seen == [("weights", 0.0), ("weights", 0.5), ("weights", 1.0), ("weights", 1.0)]


def test_a_stage_that_fails_does_not_report_its_end():
    seen = []
    progress = Progress(lambda stage, share: seen.append(share))
    with pytest.raises(ZeroDivisionError), progress.stage("compile"):
        raise ZeroDivisionError
    assert seen == [0.0]


@pytest.mark.parametrize("stages", [STAGES, MERGE_STAGES], ids=["loading", "merging"])
def test_shares_of_all_stages_make_a_hundred(stages):
    assert sum(stage.weight for stage in stages) == 100
