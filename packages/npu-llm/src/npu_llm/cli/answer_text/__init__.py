"""The text of an answer on its way to a terminal: words kept whole, Markdown rendered."""
