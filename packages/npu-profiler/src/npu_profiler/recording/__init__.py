"""One recording from its start to its file."""
