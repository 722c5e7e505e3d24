"""Questions about a trace, each answered as rows of plain data."""
