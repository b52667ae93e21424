"""Solutions of the exercises in plain PyTorch, from whose fenced gaps the starter files are made."""
