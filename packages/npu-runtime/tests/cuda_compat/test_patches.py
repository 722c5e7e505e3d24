"""Everything that is replaced comes back."""

import torch

from npu_runtime import cuda_compat
from npu_runtime.cuda_compat.activation import Patches

PLACES = (
    torch,
    torch.Tensor,
    torch.UntypedStorage,
    torch.nn.Module,
    torch.cuda,
    torch.cuda.amp,
    torch.cuda.memory,
    torch.cuda.random,
    torch.amp.autocast_mode.autocast,
    torch.amp.grad_scaler.GradScaler,
    torch.utils.data.DataLoader,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.random,
)


def names() -> list[dict[str, int]]:
    return [{name: id(value) for name, value in vars(place).items()} for place in PLACES]


def test_everything_comes_back():
    with cuda_compat.transferred():
        pass  # imports of the first time
    before = names()
    with cuda_compat.transferred():
        assert names() != before
    assert names() == before
    assert not torch.cuda.is_available()


def test_what_was_inherited_added_or_replaced_twice_comes_back():
    class Base:
        inherited = 1

    class Kind(Base):
        own = 2

    patches = Patches()
    for value in (10, 20):
        for name in ("inherited", "own", "added"):
            patches.set(Kind, name, value)
    assert (Kind.inherited, Kind.own, Kind.added) == (20, 20, 20)
    patches.undo()
    assert (Kind.inherited, Kind.own) == (1, 2)
    assert not hasattr(Kind, "added")
    assert "inherited" not in vars(Kind)
