"""How the platform's commands start: `npu_command:npu_llm` is the entry point of npu-llm.

A package of its own, beside npu_runtime, because importing that one imports torch: from the first
line here Ctrl-C ends a command quietly, and memory that is not there is one sentence. What else
lies here serves all packages and needs no torch either.
"""

# Nothing else is imported before Ctrl-C is handled.
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def __getattr__(name: str) -> "Callable[[], int]":
    if not name.startswith("npu_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def command() -> int:
        from npu_command.early_interrupt import leave

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, leave)
        from npu_command.subcommands import run

        return run(name)

    return command
