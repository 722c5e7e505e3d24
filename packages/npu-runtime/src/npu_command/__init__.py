"""Entry points of the platform's commands: `npu_command:npu_llm` starts npu-llm.

Separate from npu_runtime because importing npu_runtime imports torch. From the first line here,
Ctrl-C ends a command quietly and a lack of memory is reported in one sentence. The other modules
are shared by all packages and do not need torch either.
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
