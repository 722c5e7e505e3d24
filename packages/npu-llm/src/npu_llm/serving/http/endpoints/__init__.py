"""What is answered at each path."""
