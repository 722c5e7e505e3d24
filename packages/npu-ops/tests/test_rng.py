import pytest
import torch

DRAWS = {
    "rand": lambda device: torch.rand(100, device=device),
    "randn": lambda device: torch.randn(100, device=device),
    "randint": lambda device: torch.randint(0, 50, (100,), device=device),
    "randperm": lambda device: torch.randperm(50, device=device),
    "bernoulli": lambda device: torch.bernoulli(torch.full((100,), 0.3, device=device)),
    "multinomial": lambda device: torch.multinomial(torch.arange(10.0, device=device), 5),
    "uniform_": lambda device: torch.empty(100, device=device).uniform_(-1, 1),
    "exponential_": lambda device: torch.empty(100, device=device).exponential_(),
    "poisson": lambda device: torch.poisson(torch.full((100,), 4.0, device=device)),
    "normal": lambda device: torch.normal(torch.zeros(10, device=device), 1.0),
    "rrelu": lambda device: torch.nn.functional.rrelu(
        torch.full((50,), -1.0, device=device), training=True
    ),
    "dropout": lambda device: torch.nn.functional.dropout(torch.ones(100, device=device), 0.3),
    "dropout2d": lambda device: torch.nn.functional.dropout2d(
        torch.ones(2, 8, 3, 3, device=device), 0.5
    ),
    "alpha_dropout": lambda device: torch.nn.functional.alpha_dropout(
        torch.ones(100, device=device), 0.3
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_one_seed_gives_the_cpu_numbers(draw):
    torch.manual_seed(11)
    expected = draw("cpu")
    torch.manual_seed(11)
    assert torch.equal(draw("npu").cpu(), expected)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_drawing_on_npu_leaves_the_cpu_generator_alone(draw):
    before = torch.get_rng_state()
    draw("npu")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_generator_advances():
    torch.manual_seed(3)
    assert not torch.equal(torch.rand(4, device="npu"), torch.rand(4, device="npu"))


def test_a_generator_of_ones_own():
    generator = torch.Generator("npu").manual_seed(5)
    drawn = torch.rand(4, device="npu", generator=generator)
    assert torch.equal(drawn.cpu(), torch.rand(4, generator=torch.Generator().manual_seed(5)))
    state = generator.get_state()
    again = torch.rand(4, device="npu", generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.rand(4, device="npu", generator=generator), again)


def test_a_cpu_generator_is_refused():
    with pytest.raises(
        RuntimeError,
        match=r"expected a 'npu' device type for generator but found 'cpu'.*\[generator-device\]",
    ):
        torch.rand(2, device="npu", generator=torch.Generator())


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_dropout_at_its_limits(probability):
    x = torch.ones(8, device="npu", requires_grad=True)
    y = torch.nn.functional.dropout(x, probability)
    y.sum().backward()
    assert y.tolist() == [1.0 - probability] * 8
    assert x.grad.tolist() == [1.0 - probability] * 8


def test_dropout_gradient_uses_the_same_mask():
    x = torch.ones(1000, device="npu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 600 < (y != 0).sum().item() < 900
