import pytest

from npu_llm.cli.arguments import as_generate, read_markdown, read_setting
from npu_llm.errors import OptionError


@pytest.mark.parametrize(
    "text, setting",
    [
        ("temperature 0.7", ("temperature", 0.7)),
        ("temperature=0", ("temperature", 0.0)),
        ("top_p   1", ("top_p", 1.0)),
        ("max_new_tokens 64", ("max_new_tokens", 64)),
    ],
)
def test_a_setting_is_a_name_and_a_number(text, setting):
    assert read_setting(text) == setting


@pytest.mark.parametrize(
    "text, quoted",
    [
        ("temprature 1", "got 'temprature'"),
        ("temperature", "got ''"),
        ("temperature -1", "got '-1'"),
        ("temperature nan", "got 'nan'"),
        ("temperature inf", "got 'inf'"),
        ("top_p 0", "got '0'"),
        ("top_p 1.1", "got '1.1'"),
        ("max_new_tokens 0", "got '0'"),
        ("max_new_tokens 1.5", "got '1.5'"),
    ],
)
def test_others_are_refused(text, quoted):
    with pytest.raises(OptionError) as refused:
        read_setting(text)
    assert refused.value.code == "chat-setting"
    assert quoted in str(refused.value)


def test_temperature_0_draws_nothing_and_others_draw():
    assert as_generate({"temperature": 0.0, "top_p": 0.5}) == {
        "do_sample": False, "temperature": None, "top_p": None, "top_k": None
    }  # fmt: skip
    assert as_generate({"top_p": 0.5}) == {"top_p": 0.5, "do_sample": True}
    assert as_generate({"max_new_tokens": 3}) == {"max_new_tokens": 3}


def test_markdown_is_on_or_off():
    assert [read_markdown(text) for text in ("markdown on", "markdown=off", "top_p 1")] == [
        True, False, None
    ]  # fmt: skip
    with pytest.raises(OptionError, match="got 'maybe'") as refused:
        read_markdown("markdown maybe")
    assert refused.value.code == "chat-setting"
