"""Names the files of a checkpoint; `samestep.training.checkpoint.save` describes their contents."""

MODEL, OPTIMIZER, AVERAGE = "model.safetensors", "optimizer.pt", "average.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
REQUIRED = frozenset({MODEL, OPTIMIZER, STATE})
FILES = REQUIRED | {AVERAGE, MANIFEST}
"""The manifest and all files that it can list."""
MARK = ".samestep"
"""Names the run that made the folder; written first, and ignored by readers."""
MOST_STATE = 1 << 25
"""Maximum bytes of ``state.json``; parsed, it takes up to 20 times as much memory."""
