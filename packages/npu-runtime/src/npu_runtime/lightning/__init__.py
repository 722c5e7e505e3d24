"""What Lightning is told of npu, from the moment when it is imported."""
