import pickle

import pytest

from npu_runtime import DeviceError, DriverError, InputError, NpuError, ProgramError


@pytest.mark.parametrize("kind", [DeviceError, DriverError, InputError, ProgramError])
def test_every_error_is_an_npu_error_with_its_code_at_the_end(kind):
    error = kind("npu: something is off.", "some-code")
    assert isinstance(error, NpuError)
    assert isinstance(error, RuntimeError)
    assert error.code == "some-code"
    assert str(error) == "npu: something is off. [some-code]"


def test_an_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(ProgramError("text", "program-run")))
    assert type(error) is ProgramError
    assert (str(error), error.code) == ("text [program-run]", "program-run")
