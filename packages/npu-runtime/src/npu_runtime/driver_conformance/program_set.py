"""What conformance checks ask a driver to run: small programs in the driver's own format."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ProgramSet", "ProgramText"]


@dataclass(frozen=True)
class ProgramText:
    """One program as ``program_load`` takes it.

    Attributes:
        model: the text, in the driver's format.
        weights: the bytes that go with it; none where the format needs none.
        options: the options it is loaded with.
    """

    model: bytes
    weights: bytes = b""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgramSet:
    """The programs of one driver. All ports are float32 and dense.

    A driver that cannot run one of the optional programs leaves it out; the checks that need it are
    then reported as unsupported.

    Attributes:
        add_one: x: (64,) -> x + 1.
        two_ports: x: (2, 3), y: (2, 3) -> x + 1 and 2 * y, in this order.
        dynamic_sum: x: (n,), y: (n,) -> x + y for any n from 0; different lengths cannot be added.
        counter: x: (2,) -> the sum of every x that this request was given.
        layer_options: with these options, in place of its own, ``add_one`` records its layers.
        model_suffix: how the file name of a program ends, for example ``".xml"``.
        weights_suffix: how the name of the file with its weights ends, beside it.
    """

    add_one: ProgramText
    two_ports: ProgramText
    dynamic_sum: ProgramText | None = None
    counter: ProgramText | None = None
    layer_options: Mapping[str, str] | None = None
    model_suffix: str = ".txt"
    weights_suffix: str = ".bin"
