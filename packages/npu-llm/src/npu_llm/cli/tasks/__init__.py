"""Commands for tasks that have models of their own: speech to text, and translation."""
