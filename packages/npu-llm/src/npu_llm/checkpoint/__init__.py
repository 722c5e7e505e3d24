"""The model as users have it: its files found, checked and read, and the memory that it needs."""
