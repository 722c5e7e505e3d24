"""`npu-ops new`: writes the project of a wheel with a custom op.

The templates are in this package; the decorator for converters is npu_compiler's.
"""

from npu_ops.scaffold.project import write_project

__all__ = ["write_project"]
