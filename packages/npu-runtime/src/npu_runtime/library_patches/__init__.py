"""Changes to other libraries, made when they are imported, so that they know npu."""
