"""What a captured graph says of itself: its calls, values, ranges, names, and its text."""
