"""What happens when npu_runtime is imported, and at the end of the process."""
