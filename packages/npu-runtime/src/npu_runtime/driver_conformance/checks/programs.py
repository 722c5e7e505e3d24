"""Program checks: loading, unloading, ports and properties."""

import ctypes
from ctypes import byref, c_size_t, c_void_p

from npu_runtime.driver_conformance.bench import Bench, CheckFailure, expect, expect_no_growth
from npu_runtime.driver_conformance.driver_table import (
    Direction,
    Dtype,
    Port,
    ProgramSource,
    Status,
)
from npu_runtime.driver_conformance.program_set import ProgramText
from npu_runtime.driver_conformance.registry import check

__all__: list[str] = []


def add_one_gives(bench: Bench, program: c_void_p) -> None:
    """Fails unless the program computes x + 1."""
    request, stream = bench.request(program), bench.stream()
    x, y = bench.floats(range(64)), bench.floats([0] * 64)
    bench.bind(request, Direction.INPUT, 0, x, [64])
    bench.bind(request, Direction.OUTPUT, 0, y, [64])
    bench.run(request, stream)
    expect(
        bench.read_floats(y, 64).tolist() == [value + 1 for value in range(64)],
        "the program that was loaded does not give x + 1",
    )
    bench.call("request_destroy", request)


@check("program_load")
def loads_text_with_its_weights(bench: Bench) -> None:
    """The loaded program computes the result that its text defines."""
    add_one_gives(bench, bench.load(bench.programs().add_one))


@check("program_load")
def loads_a_file(bench: Bench) -> None:
    """With its weights in a separate file."""
    program = c_void_p()
    source = bench.file_source(bench.programs().add_one)
    bench.must("program_load", 0, byref(source), byref(program))
    add_one_gives(bench, program)


@check("program_load")
def loads_several_programs_at_once(bench: Bench) -> None:
    """Several loaded programs do not affect each other."""
    programs = [bench.load(bench.programs().add_one) for _ in range(3)]
    bench.load(bench.programs().two_ports)
    expect(len({program.value for program in programs}) == 3, "two programs have one handle")
    for program in programs:
        add_one_gives(bench, program)


@check("program_load")
def refuses_text_that_is_no_program(bench: Bench) -> None:
    """Returns any error status and a message without crashing; valid programs load afterwards."""
    whole = bench.programs().add_one
    cut = whole.model[: len(whole.model) // 2]
    for what, text in (
        ("no text at all", b""),
        ("text of another kind", b"this is no program"),
        ("half a program", cut),
        ("noise", bytes(range(256)) * 16),
    ):
        source = bench.source(ProgramText(text, whole.weights, whole.options))
        bench.fails("program_load", 0, byref(source), byref(c_void_p()), what=what)
    add_one_gives(bench, bench.load(whole))


@check("program_load")
def refuses_a_file_that_is_not_there(bench: Bench) -> None:
    """A missing file gives an error status and a message."""
    source = bench.source(bench.programs().add_one)
    source.model, source.model_bytes, source.weights, source.weights_bytes = None, 0, None, 0
    source.path = b"/no/such/program" + bench.programs().model_suffix.encode()
    bench.fails("program_load", 0, byref(source), byref(c_void_p()), what="a file that is absent")


@check("program_load")
def refuses_neither_and_both_of_path_and_model(bench: Bench) -> None:
    """Exactly one of the two must be set."""
    bench.refuses(
        "program_load", 0, byref(ProgramSource()), byref(c_void_p()), what="neither path nor model"
    )
    both = bench.source(bench.programs().add_one)
    both.path = b"/no/such/program"
    bench.refuses("program_load", 0, byref(both), byref(c_void_p()), what="both path and model")


@check("program_load")
def refuses_a_device_that_does_not_exist(bench: Bench) -> None:
    """-1, and one past the last."""
    source = bench.source(bench.programs().add_one)
    for index in (-1, bench.device_count()):
        bench.refuses(
            "program_load", index, byref(source), byref(c_void_p()), what=f"device {index}"
        )


@check("program_unload")
def leaves_other_programs_alone(bench: Bench) -> None:
    """Unloading one of two copies of a program keeps the other."""
    first, second = (bench.load(bench.programs().add_one) for _ in range(2))
    add_one_gives(bench, first)
    bench.call("program_unload", first)
    add_one_gives(bench, second)


@check("program_unload")
def gives_its_memory_back(bench: Bench) -> None:
    """Loading and unloading programs repeatedly does not leak memory."""
    source = bench.source(bench.programs().add_one)

    def repeat() -> None:
        program = c_void_p()
        bench.must("program_load", 0, byref(source), byref(program))
        bench.call("program_unload", program)

    expect_no_growth(repeat, times=10, what="a program")


def _count(bench: Bench, program: c_void_p, direction: Direction) -> int:
    count = c_size_t(99)
    bench.must("program_port_count", program, direction, byref(count))
    return count.value


@check("program_port_count")
def counts_inputs_and_outputs(bench: Bench) -> None:
    """Counts ports of programs with one and with two inputs and outputs."""
    for text, expected in ((bench.programs().add_one, 1), (bench.programs().two_ports, 2)):
        program = bench.load(text)
        for direction in Direction:
            count = _count(bench, program, direction)
            expect(count == expected, f"gave {count} for {direction.name}, there are {expected}")


@check("program_port")
def tells_dtype_and_shape(bench: Bench) -> None:
    """Checks every port of a program with two inputs and two outputs."""
    program = bench.load(bench.programs().two_ports)
    for direction in Direction:
        for index in range(2):
            port = bench.port(program, direction, index)
            got = (port.dtype, list(port.dims[: max(port.rank, 0)]))
            expect(
                got == (Dtype.FLOAT32, [2, 3]),
                f"{direction.name} {index} is float32 (2, 3); gave npu_dtype {got[0]} {got[1]}",
            )


@check("program_port")
def marks_dynamic_dims(bench: Bench) -> None:
    """A length known only at run time is -1."""
    program = bench.load(bench.optional_program("dynamic_sum"))
    for direction in Direction:
        port = bench.port(program, direction, 0)
        dims = list(port.dims[: max(port.rank, 0)])
        expect(port.rank == -1 or dims == [-1], f"{direction.name} 0 has dims (?), gave {dims}")


@check("program_port")
def refuses_an_index_that_does_not_exist(bench: Bench) -> None:
    """One past the last, and a very large one."""
    program = bench.load(bench.programs().two_ports)
    for direction in Direction:
        for index in (2, 2**62):
            bench.refuses(
                "program_port", program, direction, index, byref(Port()), what=f"port {index} of 2"
            )


def _property(bench: Bench, program: c_void_p, room: int) -> bytes:
    """Returns the bytes that program_property writes into a buffer filled with 0x5a."""
    memory = ctypes.create_string_buffer(b"\x5a" * 64)
    bench.must("program_property", program, b"LOADED_FROM_CACHE", byref(memory), room)
    if memory.raw[room:64] != b"\x5a" * (64 - room):
        raise CheckFailure(f"wrote behind the {room} bytes it was given")
    return memory.raw[:room]


@check("program_property")
def tells_whether_the_program_came_from_a_cache(bench: Bench) -> None:
    """Every driver returns YES or NO for LOADED_FROM_CACHE."""
    text = _property(bench, bench.load(bench.programs().add_one), 16).split(b"\0")[0]
    expect(text in (b"YES", b"NO"), f"LOADED_FROM_CACHE is {text!r}; the rule is YES or NO")


@check("program_property")
def cuts_at_the_bytes_it_was_given(bench: Bench) -> None:
    """The value is cut to the given size with a final zero byte; a size of 0 changes nothing."""
    program = bench.load(bench.programs().add_one)
    whole = _property(bench, program, 16).split(b"\0")[0]
    for room in (2, 1):
        expected = whole[: room - 1] + b"\0"
        got = _property(bench, program, room)
        expect(got == expected, f"wrote {got!r} into {room} bytes; the rule is {expected!r}")
    _property(bench, program, 0)


@check("program_property")
def refuses_an_unknown_key(bench: Bench) -> None:
    """Returns NPU_ERROR_UNSUPPORTED, and the runtime continues without the property."""
    program = bench.load(bench.programs().add_one)
    value = ctypes.create_string_buffer(16)
    bench.refuses(
        "program_property", program, b"NO_SUCH_PROPERTY", byref(value), 16,
        what="an unknown key", status=Status.ERROR_UNSUPPORTED,
    )  # fmt: skip
