"""What servers of one model on several machines need, whatever runs them."""
