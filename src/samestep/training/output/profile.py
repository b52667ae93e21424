"""Traces some steps with ``torch.profiler`` on every rank, for ``--profile A:B``."""

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from samestep.base.errors import Preempted, UsageError
from samestep.training.output.run_folder import explaining

if TYPE_CHECKING:
    from torch.profiler import profile, record_function

    from samestep.ranks.world.protocol import World

TOP = 30
"""Operators in the summary."""


def steps_of(span: str, *, total: int | None = None) -> range:
    """Return the steps of ``A:B``: A to B-1, counted from 1.

    Raises:
        UsageError: `span` has another form, or goes beyond the end of the training.
    """
    first, colon, end = span.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise UsageError(f"--profile is {span!r}; give first and end step, such as 10:15.")
    steps = range(int(first), int(end))
    if steps.start < 1 or not steps:
        raise UsageError(
            f"--profile {span} has no steps: they count from 1, and 10:15 traces steps 10 to 14."
        )
    if total is not None and steps[-1] > total:
        raise UsageError(f"--profile {span}: the training has {total} steps; end at {total + 1} or earlier.")
    return steps


class Profiler:
    """A context around all steps of a training that traces some of them.

    Every rank writes ``profile/rank-R.json.gz`` on its host, for a trace viewer (Perfetto, chrome://tracing).
    Rank 0 adds ``profile/summary.txt``. Other steps cost one comparison each. `span` is as in `steps_of`;
    None traces nothing. `done` are the steps before this start of the run, and `total` those of the whole
    training.

    Raises:
        UsageError: see `steps_of`.
    """

    def __init__(self, span: str | None, folder: Path, world: "World", *, done: int = 0, total: int) -> None:
        self._steps = range(0) if span is None else steps_of(span, total=total)
        self._world = world
        self._folder = folder / "profile"
        self._done = done
        self._profile: profile | None = None
        self._mark: record_function | None = None

    def __enter__(self) -> "Profiler":
        self.step_done(self._done)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._profile is not None:  # the training ends within the traced steps
            self._end(together=kind is None or issubclass(kind, Preempted))

    def step_done(self, step: int) -> None:
        """Start or stop tracing if step `step` is done and a traced step begins or has ended."""
        if self._steps.start - 2 <= step < self._steps.stop:
            self._between(step)

    def _between(self, step: int) -> None:
        if step == self._steps[-1]:
            if self._profile is not None:
                self._end(together=True)
            return
        if self._profile is None:  # one step early, because a GPU's tracer takes seconds to start
            self._prepare()
        if step + 1 in self._steps:
            self._trace(step + 1)

    def _prepare(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        activity = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}.get(self._world.device.type)
        if activity is not None:
            activities.append(activity)
        self._profile = profile(activities=activities)
        self._profile.prepare_trace()

    def _trace(self, step: int) -> None:
        """Start tracing if it is off, and mark the step with torch's own step name."""
        from torch.profiler import record_function

        assert self._profile is not None
        if self._mark is None:
            self._profile.start_trace()
        else:
            self._mark.__exit__(None, None, None)
        self._mark = record_function(f"ProfilerStep#{step}")
        self._mark.__enter__()  # type: ignore[no-untyped-call]

    def _end(self, *, together: bool) -> None:
        """Stop tracing and write the trace, if there is one.

        Unless all ranks end here `together`, this one writes its trace and no summary.
        """
        traced, self._profile = self._profile, None
        mark, self._mark = self._mark, None
        assert traced is not None
        if mark is None:
            traced.start_trace()  # torch can only stop a started trace
            traced.stop_trace()
            return
        mark.__exit__(None, None, None)
        traced.stop_trace()
        with self._explaining():
            self._folder.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(self._folder / f"rank-{self._world.place.rank}.json.gz"))
        if together:
            self._world.on_main(lambda: self._summarize(traced))

    def _summarize(self, traced: "profile") -> None:
        by = "self_cpu_time_total" if self._world.device.type == "cpu" else "self_device_time_total"
        with self._explaining():
            table = traced.key_averages().table(sort_by=by, row_limit=TOP)
            (self._folder / "summary.txt").write_text(table, encoding="utf-8")

    def _explaining(self) -> AbstractContextManager[None]:
        return explaining(self._folder, f"Fix that, then continue with --resume {self._folder.parent}.")
