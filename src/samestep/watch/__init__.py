"""What a running script does, seen from beside it, without changing it."""
