"""What models of several programs share: parts traced, saved and loaded, and their class."""
