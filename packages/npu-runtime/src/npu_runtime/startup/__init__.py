"""Startup: the steps at import of npu_runtime and at process exit."""

from npu_runtime_autoload.torch_version import require_torch

require_torch()  # before the native code is loaded
