"""The step of a model with states, turned from one of a token into one of a piece of a prompt."""
