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
            name, "must consist of a-z, 0-9 and _, begin with a letter and not end with _"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise _refused(name, "must not be a Python keyword")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise _refused(name, "must not be the name of an installed Python package")


def check_namespace(name: str) -> None:
    """Refuses a namespace of torch's ops.

    Raises:
        OperatorInputError: [op-name].
    """
    import torch  # late: most invalid names are refused without it

    if name in {op.partition("::")[0] for op in torch._C._dispatch_get_all_op_names()}:
        raise _refused(name, "must not be a namespace of torch.ops")


def _refused(name: str, problem: str) -> OperatorInputError:
    return OperatorInputError(
        f"`name` {problem}, got {name!r}. Choose another, such as my_op.",
        code="op-name",
    )
