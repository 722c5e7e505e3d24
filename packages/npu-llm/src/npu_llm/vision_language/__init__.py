"""Models that read images and text: encoder, projector and language model, each a program."""
