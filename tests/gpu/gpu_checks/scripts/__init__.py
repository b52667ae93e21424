"""Training scripts for one device, as users write them, which print the loss of each step."""
