"""One call of an op: which ones a tool looks at, what they hold, and another run of them."""
