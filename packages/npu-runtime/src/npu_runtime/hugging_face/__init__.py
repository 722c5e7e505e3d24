"""What Hugging Face's libraries are told of npu, from the moment when they are imported."""
