"""Trackers of experiments, told to keep a run to themselves."""

from collections.abc import Mapping

OFF: Mapping[str, str] = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:mlruns",
}
"""Variables that keep trackers from telling a server of a run that is none."""
