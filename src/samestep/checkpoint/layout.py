"""The names of the files in a checkpoint; see `samestep.checkpoint.save` for what they hold."""

MODEL, OPTIMIZER, AVERAGE = "model.safetensors", "optimizer.pt", "average.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
REQUIRED = frozenset({MODEL, OPTIMIZER, STATE})
FILES = REQUIRED | {AVERAGE, MANIFEST}
"""All that the manifest may list, and the manifest."""
MARK = ".samestep"
"""Names the run that made the folder; written first. It is no part of what a reader verifies."""
MOST_STATE = 1 << 25
"""Bytes of ``state.json`` at most: what it holds takes up to 20 times as much memory."""
