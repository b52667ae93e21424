"""``--profile A:B``: what torch's profiler sees of some steps, on every rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from samestep.base.errors import Error, PutOff, UsageError

if TYPE_CHECKING:
    from torch.profiler import profile, record_function

    from samestep.world.world import World

TOP = 30
"""Operators in the summary."""


def steps_of(span: str, *, total: int | None = None) -> range:
    """Return the steps that ``A:B`` means: A to B-1, counted from 1.

    Args:
        span: as the user gave it.
        total: steps of the whole training, where that is known.

    Raises:
        UsageError: it is no such span, or goes beyond the end of the training.
    """
    first, colon, end = span.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise UsageError(f"--profile {span!r} is no span of steps such as 10:15.")
    steps = range(int(first), int(end))
    if steps.start < 1 or not steps:
        raise UsageError(f"--profile {span}: steps are counted from 1, and 10:15 traces steps 10 to 14.")
    if total is not None and steps[-1] > total:
        raise UsageError(f"--profile {span}: the training has only {total} steps; use a B up to {total + 1}.")
    return steps


class Profiler:
    """Traces some steps; a context around all of them.

    Every rank writes ``profile/rank-R.json.gz`` where it runs, for a trace viewer (Perfetto, chrome://tracing).
    Rank 0 adds ``profile/summary.txt``. Before and after the steps it costs a comparison.

    Args:
        span: which steps, as in `steps_of`; None for none.
        folder: the run folder.
        world: whose rank and device this is.
        done: steps taken before, where a run is gone on with.
        total: steps of the whole training.

    Raises:
        UsageError: it is no span, or goes beyond the end of the training.
    """

    def __init__(self, span: str | None, folder: Path, world: "World", *, done: int = 0, total: int) -> None:
        self._steps = range(0) if span is None else steps_of(span, total=total)
        self._world = world
        self._folder = folder / "profile"
        self._done = done
        self._profile: profile | None = None
        self._mark: record_function | None = None

    @classmethod
    def off(cls) -> "Profiler":
        """Return a profiler that traces nothing."""
        from samestep.world.solo import SoloWorld

        return cls(None, Path(), SoloWorld(), total=0)

    def __enter__(self) -> "Profiler":
        self.step_done(self._done)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._profile is not None:  # the training ends within the steps: what there is is kept
            self._end(together=kind is None or issubclass(kind, PutOff))

    def step_done(self, step: int) -> None:
        """Note that so many steps are done and the next one begins."""
        if self._steps.start - 2 <= step < self._steps.stop:
            self._between(step)

    def _between(self, step: int) -> None:
        if step == self._steps[-1]:
            if self._profile is not None:
                self._end(together=True)
            return
        if self._profile is None:  # one step early: a GPU's tracing takes seconds to come up
            self._prepare()
        if step + 1 in self._steps:
            self._trace(step + 1)

    def _prepare(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        own = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}.get(self._world.device.type)
        if own is not None:
            activities.append(own)
        self._profile = profile(activities=activities)
        self._profile.prepare_trace()

    def _trace(self, step: int) -> None:
        """Begin to trace, or go on, with the name of the step as torch's own profiles have it."""
        from torch.profiler import record_function

        assert self._profile is not None
        if self._mark is None:
            self._profile.start_trace()
        else:
            self._mark.__exit__(None, None, None)
        self._mark = record_function(f"ProfilerStep#{step}")
        self._mark.__enter__()  # type: ignore[no-untyped-call]

    def _end(self, *, together: bool) -> None:
        """Stop, and write what was traced, if anything was.

        Args:
            together: whether all ranks end here; one that fails alone leaves its trace and no summary.
        """
        traced, self._profile = self._profile, None
        mark, self._mark = self._mark, None
        assert traced is not None
        if mark is None:
            traced.start_trace()  # it cannot be stopped before
            traced.stop_trace()
            return
        mark.__exit__(None, None, None)
        traced.stop_trace()
        with self._telling():
            self._folder.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(self._folder / f"rank-{self._world.place.rank}.json.gz"))
        if together:
            self._world.on_main(lambda: self._summarise(traced))

    def _summarise(self, traced: "profile") -> None:
        by = "self_cpu_time_total" if self._world.device.type == "cpu" else "self_device_time_total"
        with self._telling():
            table = traced.key_averages().table(sort_by=by, row_limit=TOP)
            (self._folder / "summary.txt").write_text(table, encoding="utf-8")

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Say what cannot be written, and what to do then."""
        try:
            yield
        except OSError as failed:
            raise Error(
                f"cannot write the profile to {self._folder}: {failed.strerror}. The run ends here, and "
                f"goes on with --resume {self._folder.parent} once that is mended."
            ) from failed
