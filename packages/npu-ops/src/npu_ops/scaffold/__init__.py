"""`npu-ops new`: writes a wheel with an op of one's own, for its author to fill in.

The files are the templates beside this module; the decorator for converters is npu_compiler's.
"""

from npu_ops.scaffold.project import write_project

__all__ = ["write_project"]
