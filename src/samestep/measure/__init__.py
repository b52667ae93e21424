"""Step clocks: measure the phases of training steps and write them to files."""
