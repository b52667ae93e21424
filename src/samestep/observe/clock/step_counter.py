"""Counts a script's steps and samples, and sums up their times: a view of the step clock (``--count``)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from samestep.base.step_phases import BACKWARD, DATA, EXCHANGE, FORWARD, OPTIMIZER
from samestep.base.units import counted, seconds_text
from samestep.observe.clock.clock_file import ClockOptions
from samestep.observe.clock.sample_count import SampleCounter

COUNTING = ClockOptions(folder=Path(), warm_up=1)
"""Every step but the first, which includes one-time work, is timed."""

_PARTS = {
    DATA: "loading",
    FORWARD: "forward",
    BACKWARD: "backward",
    EXCHANGE: "exposed communication",
    OPTIMIZER: "optimizer",
}


class StepCounts:
    """The steps of one rank, received from a `ScriptClock`; see `StepSink`."""

    def __init__(self) -> None:
        self.steps = 0  # all steps, known after the end
        self.forget_steps()

    def forget_steps(self) -> None:
        """Drop all steps so far."""
        self._timed: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        """Number of timed steps without and with an evaluation, and their seconds."""

    def header(self, **run: Any) -> None:
        """Ignore the properties of the run."""

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add steps to the sums."""
        for line in lines:
            sums = self._timed["evaluated" in line]
            sums.update({name: line[name] for name in ("seconds", *_PARTS)}, steps=1)

    def end(self, ended: str, message: str, *, made: int, **run: Any) -> None:
        """Store the number of steps."""
        del ended, message, run
        self.steps = made

    @property
    def timed(self) -> Counter[str]:
        """The sums over the steps without evaluation; over all, if most have one as part of the training."""
        without, evaluated = self._timed.values()
        return without if without["steps"] >= evaluated["steps"] else without + evaluated

    def summary(self, samples: SampleCounter, *, is_sharded: bool) -> str:
        """Return the counts as one line.

        If they are sharded, these are the counts of worker 0's shard.
        """
        where = " on worker 0" if is_sharded else ""
        trained, otherwise, timed = samples.all_trained, samples.all_otherwise, self.timed
        trained_on = counted(trained, "sample")
        totals = f"{counted(self.steps, 'step')}, {trained_on} in training, {otherwise:,} otherwise{where}"
        if not timed["seconds"]:
            return totals
        shares = {name: timed[phase] / timed["seconds"] for phase, name in _PARTS.items()}
        parts = [f"{name} {share:.0%}" for name, share in shares.items() if share or name != _PARTS[EXCHANGE]]
        rest = max(0.0, 1 - sum(shares.values()))
        each_step = seconds_text(timed["seconds"] / timed["steps"])
        return f"{totals}; {each_step} a step: {', '.join(parts)}, the rest {rest:.0%}"
