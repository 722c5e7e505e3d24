"""Additions of torch.npu.streams to torch's streams; these are in ../test_stream_order.py."""

import warnings

import pytest
import torch

from npu_runtime import InputError, load_program, sim

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def debug():
    yield torch.npu.set_sync_debug_mode
    torch.npu.set_sync_debug_mode("default")


WAITS = {
    "a number": lambda x: x.sum().item(),
    "a truth": lambda x: bool((x > 0).all()),
    "a copy to the cpu": lambda x: x.cpu(),
    "a copy from the cpu": lambda x: torch.ones(3).to("npu"),
    "a stream": lambda x: torch.npu.current_stream().synchronize(),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_an_error_on_request(debug, name):
    x = torch.ones(3, device="npu")
    debug("error")
    with pytest.raises(RuntimeError, match=r"makes the host wait.*sync-debug"):
        WAITS[name](x)
    debug("default")
    WAITS[name](x)


@pytest.mark.parametrize("name", WAITS)
def test_waiting_warns_on_request(debug, name):
    x = torch.ones(3, device="npu")
    debug(1)
    with pytest.warns(UserWarning, match="makes the host wait"):
        WAITS[name](x)


def test_what_does_not_wait_is_not_reported(debug):
    host = torch.ones(3).pin_memory()
    debug("error")
    x = host.to("npu", non_blocking=True) * 2
    y = torch.nn.functional.relu(x) @ x
    y.to("cpu", non_blocking=True)
    torch.npu.synchronize()
    torch.npu.Event().synchronize()


def test_host_code_that_waits_for_a_program_is_reported(run_python, save_model, add_one_model):
    path = save_model(add_one_model)
    done = run_python(
        "import torch, npu_runtime, npu_runtime.sim\n"
        f"p = npu_runtime.load_program({str(path)!r}, name='p', options={F32!r})\n"
        "x = torch.zeros(64, device='npu')\n"
        "torch.npu.set_sync_debug_mode('error')\n"
        "with npu_runtime.sim.delay(50_000, 50_000):\n"
        "    y = p.run([x])[0]\n"
        "    try:\n        y + 1\n"
        "    except RuntimeError as error:\n        print('sync-debug' in str(error))\n"
        "torch.npu.synchronize()\n"
        "print((y + 1).shape)",
        NPU_DRIVER="sim",
    )
    assert done.stdout.splitlines() == ["True", "torch.Size([64])"], done.stderr


def test_a_result_is_the_same_with_the_mode_on(debug, save_model, add_one_model):
    program = load_program(save_model(add_one_model), name="add_one", options=F32)
    debug("warn")
    with sim.delay(0, 500), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = program.run([torch.zeros(64, device="npu")])[0]
        assert torch.equal(result.cpu(), torch.ones(64))


@pytest.mark.parametrize("mode, number", [("default", 0), ("warn", 1), ("error", 2), (2, 2)])
def test_the_mode_is_told(debug, mode, number):
    debug(mode)
    assert torch.npu.get_sync_debug_mode() == number


@pytest.mark.parametrize("mode", ["loud", 3, -1])
def test_a_mode_that_is_none_is_refused(debug, mode):
    with pytest.raises(InputError, match=repr(mode)) as caught:
        debug(mode)
    assert caught.value.code == "sync-debug"


def test_a_handle_finds_its_stream():
    stream = torch.npu.Stream()
    assert torch.npu.get_stream_from_external(stream.native_handle) == stream
    wrapped = torch.npu.ExternalStream(stream.native_handle, "npu:0")
    assert isinstance(wrapped, torch.npu.Stream)
    assert wrapped == stream
    with torch.npu.stream(wrapped):
        assert torch.npu.current_stream() == stream


def test_a_handle_of_no_stream_is_refused():
    with pytest.raises(InputError, match="0x3039") as caught:
        torch.npu.ExternalStream(12345)
    assert caught.value.code == "stream-external"
