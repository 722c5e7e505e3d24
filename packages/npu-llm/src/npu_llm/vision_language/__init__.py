"""Vision-language models: encoder, projector and language model, each a program."""
