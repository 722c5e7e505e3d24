import pytest
import torch

from npu_llm.progress import MERGE_STAGES, STAGES, Progress, counted_modules


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


def test_a_stage_says_what_it_does_now():
    seen = []
    progress = Progress(lambda stage, share: seen.append(stage.doing))
    with progress.stage("weights"):
        progress.advance(0.5, "tensor 12 of 24")
    assert seen == ["", "tensor 12 of 24", ""]


def test_modules_are_counted_over_all_runs_and_hooks_are_gone():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU()))
    seen = []
    with counted_modules(model, lambda share, doing: seen.append((share, doing)), runs=2) as count:
        model(torch.zeros(2))
        count(model)  # a copy of the run code
    assert seen == [
        (0.25, "module 1 of 4, 0"),
        (0.5, "module 2 of 4, 1.0"),
        (1.0, "module 4 of 4, 1.0"),
    ]
    model(torch.zeros(2))
    assert len(seen) == 3
