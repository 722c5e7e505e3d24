"""Rules for the name of a new op."""

import importlib.util
import keyword
import re
import sys

from npu_ops.errors import OperatorInputError

__all__ = ["check_name", "check_namespace"]


def check_name(name: str) -> None:
    """Refuses invalid names of ops and packages, without torch.

    Raises:
        OperatorInputError: [op-name].
    """
    if not re.fullmatch(r"[a-z](?:[a-z0-9_]*[a-z0-9])?", name):
        raise _refused(
            name, "is made of a-z, 0-9 and _, begins with a letter and ends with none of _"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise _refused(name, "must not be a word of Python's own")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise _refused(name, "must not be that of a Python package that is there already")


def check_namespace(name: str) -> None:
    """Refuses a namespace of torch's ops.

    Raises:
        OperatorInputError: [op-name].
    """
    import torch  # late: most invalid names are refused without it

    if name in {op.partition("::")[0] for op in torch._C._dispatch_get_all_op_names()}:
        raise _refused(name, "must not be that of a namespace of torch.ops")


def _refused(name: str, problem: str) -> OperatorInputError:
    return OperatorInputError(
        f"`name` {problem}, got {name!r}. Choose another, such as my_op.",
        code="op-name",
    )
