"""From sounds to what is said in them."""
