"""Loggers: TensorBoard and Weights & Biases receive the rows of a run after the run folder has stored them.

The run folder has all figures as well. The package of a logger is imported when the logger is opened.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import tomli_w

from samestep.base.errors import UsageError
from samestep.base.step_phases import OF_LOOP
from samestep.training.output.run_folder import Result, RunFolder, Sink

if TYPE_CHECKING:
    import wandb
    from torch.utils.tensorboard import SummaryWriter


class Logger(Protocol):
    """A logger on rank 0; if a method raises, the training continues without the logger."""

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log some of the rows of ``metrics.jsonl``, in order, including the first step of a start."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Log a row of ``evaluations.jsonl``."""

    def close(self, result: Result | None) -> None:
        """Flush and close; `result` is None for an unfinished run, which can be resumed."""


def step_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a step: ``train/loss`` etc., and ``phase/forward`` etc. in seconds."""
    return {
        f"{'phase' if name in OF_LOOP else 'train'}/{name}": value
        for name, value in row.items()
        if name != "step"
    }


def evaluation_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an evaluation: ``test/accuracy`` etc., and other metrics by their names."""
    plain = {name: value for name, value in row.items() if name not in ("step", "metrics")}
    figures = {**plain, **row.get("metrics", {})}
    return {f"test/{name}": value for name, value in figures.items() if value is not None}


class TensorBoard:
    """A logger that writes event files to the run folder, flushed after every call; the first with a row."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._folder = folder
        self._config = config
        self._writer: SummaryWriter | None = None

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Logger.steps`."""
        for row in rows:
            self._write(row["step"], step_figures(row))
        self._flush()

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """See `Logger.evaluation`."""
        self._write(row["step"], evaluation_figures(row))
        self._flush()

    def close(self, result: Result | None) -> None:  # noqa: ARG002 - the last evaluation has these figures
        """See `Logger.close`."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, step: int, figures: Mapping[str, float]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:
            # A killed run has logged steps after its last checkpoint, which are repeated.
            self._writer = SummaryWriter(self._folder, purge_step=step)
            if step <= 1:  # 0 is an evaluation before the first step
                text = tomli_w.dumps(dict(self._config))
                self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()


class Wandb:
    """A logger to a run of wandb, whose x-axis is the training step.

    Steps that a resumed run repeats are logged again with the same figures, because a run on the server can
    only grow.
    """

    def __init__(self, run: "wandb.Run") -> None:
        self._run = run
        run.define_metric("*", step_metric="step")

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Logger.steps`."""
        for row in rows:
            self._run.log({"step": row["step"], **step_figures(row)})

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """See `Logger.evaluation`."""
        self._run.log({"step": row["step"], **evaluation_figures(row)})

    def close(self, result: Result | None) -> None:
        """See `Logger.close`."""
        if result is not None:
            self._run.summary.update({f"result/{name}": value for name, value in result.as_dict().items()})
        self._run.finish(exit_code=0 if result is not None else 1)


def open_wandb(run_folder: Path, config: Mapping[str, Any], report: Callable[[str], None]) -> Wandb:
    """Return a logger to the wandb run of a run folder, a new one the first time.

    The user configures wandb as usual, by ``wandb login``, ``WANDB_MODE`` and its other variables. Without a
    login, or if the server cannot be reached, wandb writes files for ``wandb sync``, without a prompt.
    """
    import wandb

    settings = wandb.setup().settings
    if settings.mode != "online":
        return _init(run_folder, config)
    try:
        if _logged_in(settings):
            return _init(run_folder, config, resume="allow")
        reason = "there is no login"
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
    report(
        f"wandb: {reason}; the figures are stored in {run_folder}/wandb. "
        "Send them with `wandb login` and `wandb sync`"
    )
    return _init(run_folder, config, mode="offline")


def _init(run_folder: Path, config: Mapping[str, Any], **how: Any) -> Wandb:
    """Start the wandb run of a run folder, or resume it."""
    import wandb

    settings = wandb.setup().settings
    id_file = run_folder / "wandb" / "run-id"
    id_file.parent.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        dir=run_folder,
        project=settings.project or "samestep",
        name=settings.run_name or run_folder.absolute().name,
        id=id_file.read_text(encoding="utf-8").strip() if id_file.exists() else None,
        config=dict(config),
        **how,
    )
    id_file.write_text(f"{run.id}\n", encoding="utf-8")
    return Wandb(run)


def _logged_in(settings: "wandb.Settings") -> bool:
    """Return whether wandb finds a login without a prompt."""
    import wandb

    if "prompt" in signature(wandb.login).parameters:  # since 0.31, which deprecates the older call
        return wandb.login(prompt=False, verify=False)  # type: ignore[call-arg]
    return bool(wandb.api.api_key or settings.identity_token_file)


OPENERS: Mapping[str, Callable[[Path, Mapping[str, Any], Callable[[str], None]], Logger]] = {
    "tensorboard": lambda run_folder, config, _: TensorBoard(run_folder / "tensorboard", config),
    "wandb": open_wandb,
}
"""Each opens the logger of that name, with the run folder, the configuration and a function for notes."""


POINTS = 10
"""Maximum rows per window for loggers: a window can have 500 rows a second, at about 1 ms each."""


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers whose packages are not installed.

    Raises:
        UsageError: names the missing package and the command that installs it.
    """
    for name in names:
        if find_spec(name) is None:
            raise UsageError(
                f"--logger {name} needs the package {name}, which is not installed: "
                "pip install 'samestep[loggers]'."
            )


def with_loggers(
    folder: RunFolder, names: Sequence[str], config: Mapping[str, Any], *, report: Callable[[str], None]
) -> Sink:
    """Return a sink that stores rows in `folder` and sends them to the loggers called `names`, on rank 0.

    `report` receives one line about a logger that fails; the training continues without it.
    """
    sink = LoggedSink(folder, report)
    for name in dict.fromkeys(names):
        sink.open(name, folder.path, config)
    return sink


class LoggedSink(Sink):
    """A sink that passes rows to another sink, whose errors are raised, and then to loggers."""

    def __init__(self, sink: Sink, report: Callable[[str], None]) -> None:
        self._sink = sink
        self._report = report
        self._loggers: dict[str, Logger] = {}

    def open(self, name: str, path: Path, config: Mapping[str, Any]) -> None:
        """Open the logger called `name` for the run in the folder `path`."""
        with self._without_it(name):
            self._loggers[name] = OPENERS[name](path, config, self._report)

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.steps`."""
        self._sink.steps(rows)
        some = spread(rows, POINTS)
        self._for_loggers(lambda logger: logger.steps(some))

    def ranks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.ranks`; loggers receive rank 0's figures only."""
        self._sink.ranks(rows)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """See `Sink.evaluation`."""
        self._sink.evaluation(row)
        self._for_loggers(lambda logger: logger.evaluation(row))

    def finish(self, result: Result) -> None:
        """See `Sink.finish`."""
        self._sink.finish(result)
        self._end(result)

    def close(self) -> None:
        """Close the loggers and the sink; without a call of `finish` the run is unfinished."""
        self._end(None)
        self._sink.close()

    def _end(self, result: Result | None) -> None:
        self._for_loggers(lambda logger: logger.close(result))
        self._loggers.clear()

    def _for_loggers(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            with self._without_it(name):
                act(logger)

    @contextmanager
    def _without_it(self, name: str) -> Iterator[None]:
        """Drop a logger that fails in the block, and report it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no failure of a logger ends a training
            self._loggers.pop(name, None)
            reason = " ".join(str(error).split()) or "no message"
            self._report(
                f"--logger {name} failed and is now off ({type(error).__name__}: {reason}); metrics.jsonl "
                "has all figures"
            )


def spread(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most `most` (2 or more) of the rows, evenly spaced, including the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(k * (len(rows) - 1) / (most - 1))] for k in range(most)]
