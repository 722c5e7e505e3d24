"""What happens when npu_runtime is imported, and at the end of the process."""

from npu_runtime_autoload.torch_version import require_torch

require_torch()  # before the native code is loaded
