"""The platform's exceptions: one tree, each error with a stable code."""

__all__ = [
    "DeviceError",
    "DriverError",
    "FileAccessError",
    "IndexRangeError",
    "InputError",
    "KindError",
    "NpuError",
    "ProgramError",
]


class NpuError(RuntimeError):
    """Base of all errors that the platform raises on purpose.

    Args:
        message: subject, rule, the received value, and the next step.
        code: stable name of the error, for example ``"device-absent"``, appended to the text in
            brackets.

    Attributes:
        code: the stable name.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.message = message
        self.code = code

    def __reduce__(self) -> tuple[type["NpuError"], tuple[str, str]]:
        # The default would call the class with only the finished text.
        return type(self), (self.message, self.code)


class DeviceError(NpuError):
    """The requested device is absent, or its index does not exist."""


class DriverError(NpuError):
    """A driver or its vendor's software failed."""


class ProgramError(NpuError):
    """A program could not be compiled, imported or run."""


class IndexRangeError(NpuError, IndexError):
    """An index in a program's input, or a computed one, is out of range.

    Both a RuntimeError and an IndexError: torch raises one or the other, depending on the op.
    """


class InputError(NpuError, ValueError):
    """An argument violates the rule in the message."""


class KindError(InputError, TypeError):
    """An argument has the wrong type, for example a string instead of a tensor."""


class FileAccessError(InputError):
    """The system denies access to a file or folder of the caller."""
