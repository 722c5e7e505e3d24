"""The rules that were read from the NPU compiler's source, and what follows from them."""
