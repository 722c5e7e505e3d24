"""The model as people have it: files found, checked and read, and what they need of memory."""
