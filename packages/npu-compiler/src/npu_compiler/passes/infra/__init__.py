"""Infrastructure of passes: the base class, patterns, and the base of fusions."""
