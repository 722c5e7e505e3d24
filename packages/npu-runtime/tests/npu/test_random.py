import pytest
import torch


def test_one_seed_gives_the_cpus_numbers():
    torch.manual_seed(11)
    on_cpu = torch.rand(5)
    torch.manual_seed(11)
    on_npu = torch.rand(5, device="npu")
    assert torch.equal(on_npu.cpu(), on_cpu)


def test_the_streams_are_independent():
    torch.manual_seed(11)
    expected = torch.rand(5)
    torch.manual_seed(11)
    torch.rand(1000, device="npu")
    assert torch.equal(torch.rand(5), expected)


def test_state_can_be_saved_and_restored():
    state = torch.npu.get_rng_state()
    first = torch.rand(4, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="npu").cpu(), first.cpu())
    assert state.device.type == "cpu"


def test_seeding_the_device_leaves_the_cpu_alone():
    before = torch.get_rng_state()
    torch.npu.manual_seed(5)
    assert torch.npu.initial_seed() == 5
    torch.npu.manual_seed_all(6)
    assert torch.npu.initial_seed() == 6
    assert torch.equal(torch.get_rng_state(), before)


def test_seed_draws_a_new_seed():
    first, second = torch.npu.seed(), torch.npu.seed()
    assert first != second
    torch.npu.seed_all()
    assert torch.npu.initial_seed() not in (first, second)


def test_a_generator_of_its_own_repeats():
    generator = torch.Generator(device="npu").manual_seed(9)
    clone = generator.clone_state()
    first = torch.rand(3, device="npu", generator=generator)
    assert torch.equal(torch.rand(3, device="npu", generator=clone).cpu(), first.cpu())
    assert generator.device == torch.device("npu:0")


def test_all_states_round_trip():
    states = torch.npu.get_rng_state_all()
    assert len(states) == torch.npu.device_count()
    first = torch.rand(3, device="npu")
    torch.npu.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="npu").cpu(), first.cpu())


def test_fork_rng_restores_the_device():
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.npu.manual_seed(123)
    assert torch.npu.initial_seed() != 123


def test_a_cpu_generator_on_the_device_is_refused():
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device="npu", generator=torch.Generator())


def test_seeding_opens_no_device_and_counts_for_the_first_use(run_python):
    done = run_python(
        "import torch\n"
        "torch.manual_seed(12)\n"
        "print('libopenvino' in open('/proc/self/maps').read())\n"
        "first = torch.rand(3, device='npu').cpu()\n"
        "print(torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(12))))\n"
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 10**30])
def test_seed_that_64_bits_do_not_hold(seed):
    for function in (torch.npu.manual_seed, torch.npu.manual_seed_all):
        with pytest.raises(ValueError, match="a 64-bit integer") as caught:
            function(seed)
        assert caught.value.code == "seed-range"


def test_a_text_is_no_seed():
    with pytest.raises(TypeError, match=r"`seed` must be int, got b'7'. .*\[argument-kind\]"):
        torch.npu.manual_seed(b"7")


def test_a_state_of_another_dtype_is_refused():
    with pytest.raises(TypeError, match=r"uint8 tensor, got torch\.float32") as caught:
        torch.npu.set_rng_state(torch.npu.get_rng_state().float())
    assert caught.value.code == "argument-kind"
