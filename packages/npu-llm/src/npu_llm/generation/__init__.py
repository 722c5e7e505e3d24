"""NPUModelForCausalLM, the model class with transformers' `generate`."""
