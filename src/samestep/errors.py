"""Provides the exceptions of samestep under names that do not change: ``except samestep.errors.PeerLost``."""

from samestep.base.errors import (
    CheckpointError,
    DataError,
    DetectionError,
    DeviceFailed,
    Error,
    OutOfStep,
    PeerLost,
    Preempted,
    StepsDiffer,
    UsageError,
    WorkerFailed,
    WorldError,
)

__all__ = [
    "CheckpointError",
    "DataError",
    "DetectionError",
    "DeviceFailed",
    "Error",
    "OutOfStep",
    "PeerLost",
    "Preempted",
    "StepsDiffer",
    "UsageError",
    "WorkerFailed",
    "WorldError",
]
