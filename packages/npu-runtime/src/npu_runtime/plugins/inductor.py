"""What torch's Inductor asks ``torch.npu`` for: the classes that write code for the device.

They are in whichever wheel names a module for them by an entry point of the group
``npu_runtime.inductor``; npu-compiler does. Nothing is imported before Inductor asks.
"""

from typing import Any

from npu_runtime.errors import InputError

__all__ = ["ENTRY_POINT_GROUP", "INDUCTOR_NAMES", "find_inductor_class"]

ENTRY_POINT_GROUP = "npu_runtime.inductor"

# torch looks these up on the module of a private-use device (torch._inductor.codegen.common).
INDUCTOR_NAMES = frozenset(
    {"Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"}
)


def find_inductor_class(name: str) -> Any:
    """Returns a class that Inductor asks for, or None when no installed wheel has it.

    Args:
        name: one of INDUCTOR_NAMES.

    Raises:
        InputError: two wheels offer classes (code ``inductor-wheels``).
    """
    import importlib.metadata  # late: `import torch` brings this module, and few programs ask

    found = sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
    if len(found) > 1:
        raise InputError(
            f"torch.npu.{name}: one installed wheel may write Inductor's code; got "
            f"{', '.join(entry.value for entry in found)}. Uninstall all but one.",
            code="inductor-wheels",
        )
    return getattr(found[0].load(), name, None) if found else None
