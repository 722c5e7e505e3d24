"""What became slower or faster from some traces to others, and whether that is more than noise."""
