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
    """Base of every error that the platform raises on purpose.

    Args:
        message: subject, rule, what was received, and what to do next.
        code: stable name of the error, for example ``"device-absent"``. It ends the text in
            brackets.

    Attributes:
        code: the stable name.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.message = message
        self.code = code

    def __reduce__(self) -> tuple[type["NpuError"], tuple[str, str]]:
        # The default would call the class with the finished text alone.
        return type(self), (self.message, self.code)


class DeviceError(NpuError):
    """The device asked for is not there, or its index does not exist."""


class DriverError(NpuError):
    """A driver or its vendor's software failed."""


class ProgramError(NpuError):
    """A program could not be compiled, imported or run."""


class IndexRangeError(NpuError, IndexError):
    """An index in a program's input, or one that it computed, is out of range.

    A RuntimeError and an IndexError at once: torch raises the one or the other, by the op.
    """


class InputError(NpuError, ValueError):
    """A value given by the caller breaks a rule that the message states."""


class KindError(InputError, TypeError):
    """An argument is of another kind than the signature says: a text for a tensor, say."""


class FileAccessError(InputError):
    """The system refuses a file or folder that the caller named."""
