"""Takes training steps and evaluates the model, with one result on any number of workers."""
