"""From the logits of a step to tokens, whatever the model is."""
