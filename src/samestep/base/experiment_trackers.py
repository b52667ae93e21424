"""Lists the variables that switch experiment trackers off."""

from collections.abc import Mapping

OFF: Mapping[str, str] = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:mlruns",
}
"""Variables under which trackers send nothing to a server."""
