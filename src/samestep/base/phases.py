"""The phases of a training step, by the names that files, studies and pages have for them."""

DATA, TO_DEVICE, FORWARD, BACKWARD = "data", "to_device", "forward", "backward"
EXCHANGE, OPTIMIZER, OTHER = "exposed_sync", "optimizer", "other"

ALL = (DATA, TO_DEVICE, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER, OTHER)
"""What a step is made of, in order; `EXCHANGE` is what it waits for and backward did not hide."""

OF_LOOP = (DATA, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER)
"""Those that a recipe's own loop tells apart."""
