"""Running what was selected: the side that asks, its child processes, and the cases in them."""
