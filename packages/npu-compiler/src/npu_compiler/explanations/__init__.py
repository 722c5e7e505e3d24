"""What became of a model, told to people: as text and as a page."""
