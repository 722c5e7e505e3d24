import pytest

from npu_compiler.errors import OptionError
from npu_llm.models import program_form
from npu_llm.models.program_form import ProgramForm, form_here, form_of


def test_forms_differ_by_generation():
    assert not form_of("lunar-lake").scales_weights
    assert form_of("panther-lake").scales_weights
    assert form_of("4000").options(1) == {"NPU_TILES": "2"}
    assert form_of("4000").options(256) == form_of("3720").options(1) == {}


@pytest.mark.parametrize("found, number", [("", ""), ("4000", "4000"), ("9999", "9999")])
def test_form_here_is_that_of_the_device(monkeypatch, found, number):
    monkeypatch.setattr(program_form, "npu_architecture", lambda: found)
    assert form_here().target == number
    assert bool(form_here().options(1)) == bool(number)


def test_a_device_that_is_not_an_npu_has_no_options():
    assert ProgramForm().options(1) == {}


def test_unknown_target_is_refused():
    with pytest.raises(OptionError) as caught:
        form_of("moon-lake")
    assert caught.value.code == "unknown-target"
