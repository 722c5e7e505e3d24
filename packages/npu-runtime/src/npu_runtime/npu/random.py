"""Random number generators of ``torch.npu``: seeds and states.

One seed gives the same numbers as on the CPU; the generators are independent of the CPU's
(csrc/device/generator.cpp).
"""

from collections.abc import Iterable

import torch

from npu_runtime import _C
from npu_runtime.errors import InputError, KindError
from npu_runtime.npu.device import DeviceLike, device_index
from npu_runtime.public_calls import public_call

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


@public_call
def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _C.default_generator(_C.current_device()).manual_seed(_checked(seed))


@public_call
def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices; ``torch.manual_seed`` calls it.

    Does not open a device: a device used later starts from this seed.
    """
    # A CPU generator validates seeds and converts negative ones.
    _C.seed_default_generators(torch.Generator().manual_seed(_checked(seed)).initial_seed())


def _checked(seed: int) -> int:
    number = int(seed)
    if not -(2**63) <= number < 2**64:
        raise InputError(
            f"torch.npu: a seed must be a 64-bit integer, got one of {number.bit_length()} bits. "
            "Pass a smaller one.",
            code="seed-range",
        )
    return number


def seed() -> int:
    """Seeds the current device's generator with a random number, and returns it."""
    return _C.default_generator(_C.current_device()).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    manual_seed_all(torch.Generator().seed())


def default_generators() -> tuple[torch.Generator, ...]:
    """Default generators by device index; ``torch.npu.default_generators`` is this tuple."""
    return tuple(_C.default_generator(index) for index in range(_C.device_count()))


def initial_seed() -> int:
    """Returns the seed of the current device's generator."""
    return _C.default_generator(_C.current_device()).initial_seed()


def get_rng_state(device: DeviceLike = "npu") -> torch.Tensor:
    """Returns the state of a device's generator: a uint8 CPU tensor, as in torch."""
    return _C.default_generator(device_index(device)).get_state()


@public_call
def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "npu") -> None:
    """Sets the state of a device's generator from a tensor of :func:`get_rng_state`.

    Raises:
        KindError: the tensor is not uint8 (code ``argument-kind``).
    """
    if new_state.dtype is not torch.uint8:
        raise KindError(
            f"torch.npu.set_rng_state: `new_state` must be a uint8 tensor, got {new_state.dtype}. "
            "Pass the result of get_rng_state.",
            code="argument-kind",
        )
    _C.default_generator(device_index(device)).set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of all devices' generators, by index."""
    return [get_rng_state(index) for index in range(_C.device_count())]


@public_call
def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' generators, by index."""
    if isinstance(new_states, torch.Tensor):
        raise KindError(
            "torch.npu.set_rng_state_all: `new_states` must be a list of tensors, got a tensor of "
            f"{tuple(new_states.shape)}. Pass the result of get_rng_state_all.",
            code="argument-kind",
        )
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
