"""What torch tests its own operators, modules and optimizers with, held against a device."""
