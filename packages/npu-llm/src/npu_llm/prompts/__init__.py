"""From messages to tokens and back: chat templates, and tokenizers without transformers."""
