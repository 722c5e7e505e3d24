"""The survey of an NPU's compiler: its page."""

import npu_survey
from npu_verdicts import Row, Verdicts


def program(name, kind, *broken, reason=""):
    verdicts = {"4000": reason}
    return Row(name, f"{kind} 0", Verdicts(broken, broken, False, verdicts, verdicts))


FOUND = {
    "qwen3": [Row("qwen3", "whole", None), program("qwen3", npu_survey.AS_IS)],
    "mobilevitv2": [
        Row("mobilevitv2", "refused; whole, rewritten", None, "on the host: aten.roll"),
        program("mobilevitv2", npu_survey.AS_IS, "Col2Im (opset15)", reason="no"),
        program("mobilevitv2", npu_survey.GIVEN),
    ],
    "regnet": [Row("regnet", "", None, "left out: it is not installed")],
    "swin": [],
}


def test_the_page_has_verdicts_as_they_are_and_of_what_is_given():
    text = npu_survey.page(FOUND, "the compiler 1")
    assert "small models of 2 architectures" in text
    assert "- Rules: 1 whole, 1 refused\n" in text
    assert '- Rules, with `target="NPU"`: 1 whole, 1 whole, rewritten\n' in text
    assert "- NPU 4000: 2 of 2 programs accepted\n" in text
    assert "| qwen3 | text decoder | 1 | whole |  | 1 of 1 |  |\n" in text
    assert text.endswith(
        "| mobilevitv2 | vision | 1 | refused | whole, rewritten | 1 of 1 | "
        "Col2Im (opset15); on the host: aten.roll |\n"
    )
