"""Defines the result of a training."""

from dataclasses import asdict, dataclass, field
from typing import Any

from samestep.base.step_phases import phase_text
from samestep.base.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one training; equal on all ranks but for the times."""

    accuracy: float
    """On the test set after the last epoch, 0 .. 1."""
    correct: int
    total: int
    """Test samples, each counted once."""
    loss: float
    """Mean cross-entropy of a test sample."""
    epochs: int
    steps: int
    seconds: float
    """Time of the training steps, without evaluation and set-up."""
    samples_per_second: float
    """Training samples over `seconds`."""
    weights_sha256: str
    """Of the final state dict, see `samestep.parallel.gradients.weight_checksum`."""
    world_size: int
    step_s: dict[str, float]
    """Median seconds of each phase of a step, on this rank."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The other requested metrics, over the test set."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result by name."""
        return asdict(self)

    def summary(self) -> str:
        """Return the result as two lines of text; one if this start took no step."""
        reached = (
            f"{counted(self.world_size, 'worker')}: {self.accuracy:.2%} of the test set right "
            f"({self.correct}/{self.total}) after "
            f"{counted(self.epochs, 'epoch')}, {counted(self.steps, 'step')}, {self.seconds:.1f} s; "
            f"{self.samples_per_second:,.0f} samples/s"
        )
        step_s = sum(self.step_s.values())
        if not step_s:
            return reached
        parts = ", ".join(
            f"{phase_text(name)} {seconds / step_s:.0%}"
            for name, seconds in sorted(self.step_s.items(), key=lambda item: -item[1])
            if seconds / step_s >= 0.005
        )
        return f"{reached}\na step takes {step_s * 1e3:.2f} ms: {parts}"
