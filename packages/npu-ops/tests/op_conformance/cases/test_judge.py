"""Rules that cannot fail are useless: each gets a wrong result that it must detect."""

import pytest
import torch

from npu_ops.op_conformance.cases import Case
from npu_ops.op_conformance.cases.judge import RULES, Evaluation, evaluate, judge, tolerance_named


def case_of(op, of="float32", **arguments):
    return Case("interface", op, of, "contiguous", arguments)


def verdict(case, change):
    """The verdict on the CPU's results, changed."""
    expected = evaluate(case, "forward", "cpu")
    results = change([leaf.clone() for leaf in expected.results])
    return judge(case, "forward", Evaluation(results, expected.arguments), expected)


SORT = case_of("sort", input="[40] few", dim=0)
QR = case_of("linalgqr", "float64", input="[5,3]")
EIGH = case_of("eigh", "float64", input="[4,4] spd")
SVD = case_of("svd", "float64", input="[5,3]", full_matrices=False)
UNIQUE = case_of(
    "unique_unsorted", input="[40] few", sorted=False, return_inverse=False, return_counts=True
)
NORMAL = case_of("normal_", input="[8192]")
DROPOUT = case_of("dropout", input="[8192] 1..2", p=0.25)
PERMUTATION = case_of("randperm", "int64", n=50, dtype="torch.int64")


def swap_ties(results):
    values, indices = results
    first, second = (values == values[0]).nonzero().flatten()[:2].tolist()
    indices[[first, second]] = indices[[second, first]]
    return [values, indices]


def other_random_numbers(results):
    return [torch.randn(8192, generator=torch.Generator().manual_seed(1))]


def other_dropout(results):
    keeps = torch.rand(8192, generator=torch.Generator().manual_seed(1)) > 0.25
    return [DROPOUT.make_arguments()["input"] * keeps / 0.75]


@pytest.mark.parametrize(
    "case, change",
    [
        (SORT, swap_ties),
        (UNIQUE, lambda r: [leaf.flip(0) for leaf in r]),
        (QR, lambda r: [-leaf for leaf in r]),
        (EIGH, lambda r: [r[0], -r[1]]),
        (SVD, lambda r: [-r[0], r[1], -r[2]]),
        (NORMAL, other_random_numbers),
        (DROPOUT, other_dropout),
        (PERMUTATION, lambda r: [r[0].flip(0)]),
    ],
    ids=lambda value: getattr(value, "op", None),
)
def test_another_right_result_passes(case, change):
    assert verdict(case, change) is None


def two_alike(results):
    values, indices = results
    indices[1] = indices[0]
    return [values, indices]


@pytest.mark.parametrize(
    "case, change, words",
    [
        (SORT, two_alike, "an index occurs twice"),
        (SORT, lambda r: [r[0], r[1].flip(0)], "elements at the indices"),
        (SORT, lambda r: [r[0], r[1] + 40], "an index is out of range"),
        (UNIQUE, lambda r: [r[0], r[1] + 1], "not close"),
        (QR, lambda r: [r[0], r[1] + 1e-3], "below its diagonal"),
        (QR, lambda r: [r[0] * 2, r[1] / 2], "not close"),
        (EIGH, lambda r: [r[0], r[1].flip(-1)], "not close"),
        (SVD, lambda r: [-r[0], r[1], r[2]], "not close"),
        (NORMAL, lambda r: [r[0] + 0.2], "moment 1"),
        (NORMAL, lambda r: [r[0] * 1.2], "moment 2"),
        (DROPOUT, lambda r: [r[0] * 1.01], "not close"),
        (DROPOUT, lambda r: [r[0] * (torch.arange(8192) % 2)], "moment 1"),
        (PERMUTATION, lambda r: [r[0].clamp(min=1)], "not equal"),
        (case_of("argmax", input="[9] distinct"), lambda r: [(r[0] + 1) % 9], "elements at"),
        (case_of("sum", "int64", input="[9]"), lambda r: [r[0] + 1], "not equal"),
        (case_of("abs", input="[9]"), lambda r: [r[0].double()], "dtype"),
        (case_of("abs", input="[9]"), lambda r: [r[0][:8]], "shape"),
        (case_of("abs", input="[1000]"), lambda r: [r[0].index_fill(0, torch.tensor(7), 2)], "1 /"),
    ],
)
def test_a_wrong_result_fails(case, change, words):
    assert words in (verdict(case, change) or "passed")


def test_every_rule_is_tried_above():
    tried = {one.operator.compare for one in (SORT, UNIQUE, QR, EIGH, SVD, NORMAL, DROPOUT)}
    assert tried | {"close", "permutation"} == set(RULES)


def test_an_argument_that_was_written_is_seen():
    case = case_of("abs", input="[9]")
    expected = evaluate(case, "forward", "cpu")
    got = Evaluation(expected.results, [expected.arguments[0] + 1])
    assert "an argument after the call" in (judge(case, "forward", got, expected) or "")


def test_the_class_of_an_error_is_compared():
    case = case_of("abs", input="[9]")
    one, other = Evaluation(error="ValueError: a"), Evaluation(error="TypeError: b")
    assert judge(case, "forward", one, Evaluation(error="ValueError: c")) is None
    assert "got ValueError" in (judge(case, "forward", one, other) or "")


def test_each_tolerance_has_a_reason():
    for name in ("usual", "sums", "long_chains"):
        assert len(tolerance_named(name).reason) > 40
    assert tolerance_named("usual").is_exact
