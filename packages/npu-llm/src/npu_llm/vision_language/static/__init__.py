"""Models of images and text in programs of fixed sizes, as NPUs need them."""
