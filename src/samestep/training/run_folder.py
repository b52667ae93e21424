"""The folder of one run.

::

    runs/NAME/
      config.toml        the resolved settings; written first
      sessions.jsonl     one object per start of the run: the first one and each resume
      metrics.jsonl      one object per step
      evaluations.jsonl  one object per evaluation
      ranks.jsonl        one object per rank and window of steps
      checkpoints/       one folder each
      result.json        written last: a run without one did not finish
      .samestep-run      the identity of the run, by which it finds its own drafts of these files
      .samestep-lock     which process writes; see `samestep.training.run_lock`
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import tomli_w

from samestep.base.documents import parse_json
from samestep.base.errors import Error, UsageError
from samestep.base.own_names import claim, probe, remove_file_drafts, write_whole
from samestep.base.record import json_line, provenance, write_json
from samestep.base.regular_files import kind_of, lies_at, open_regular, read_text
from samestep.training.line_files import LineFiles
from samestep.training.result import Result

_BY_STEP = ("metrics.jsonl", "evaluations.jsonl", "ranks.jsonl")
_FILES = ("config.toml", *_BY_STEP, "sessions.jsonl", "result.json")
_OURS = {*_FILES, "checkpoints", "profile", "report.html"}
_LINE = 1 << 24
"""Bytes of a line at most; one has about 300."""


class Sink(Protocol):
    """Takes what a run produces; rank 0's keeps it, the others' drop it."""

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take one row per step."""

    def ranks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take one row per rank, over the steps since the last time."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Take the outcome of an evaluation."""

    def finish(self, result: Result) -> None:
        """Take the result; the run is over."""

    def close(self) -> None:
        """Let go of everything; without a result before, the run may go on later."""


class Nowhere:
    """Keeps nothing: the sink of every rank but the first."""

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.steps`."""

    def ranks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Sink.ranks`."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """See `Sink.evaluation`."""

    def finish(self, result: Result) -> None:
        """See `Sink.finish`."""

    def close(self) -> None:
        """See `Sink.close`."""


class RunFolder:
    """The files of one run.

    What the run begins and ends with raises an Error that names the file where it cannot be written; lines of
    steps, ranks and evaluations wait in memory.

    Args:
        path: a folder that `prepare` or `reopen` has accepted.
        tell: receives a line about a file that cannot be written.
    """

    def __init__(self, path: Path, tell: Callable[[str], None] = lambda _: None) -> None:
        self.path = path
        self._lines = LineFiles(tell)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @staticmethod
    def prepare(path: Path) -> None:
        """Make the folder and show that it can be written, before any work starts.

        Raises:
            UsageError: the folder cannot be made or written, or belongs to another run.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe(path)
            taken = sorted(_OURS & {entry.name for entry in path.iterdir()})
        except OSError as error:
            raise UsageError(
                f"cannot write to the output folder {path}: {error.strerror}. Choose another --out."
            ) from None
        if taken:
            raise UsageError(
                f"{path} already holds a run ({', '.join(taken)}). Choose another --out, move it away, "
                f"or go on with it: --resume {path}."
            )

    @staticmethod
    def reopen(path: Path) -> None:
        """Show that the folder holds a run that can go on, before any work starts.

        Raises:
            UsageError: it holds none, or a finished one, or cannot be written.
        """
        RunFolder.check(path)
        if RunFolder.has_finished(path):
            raise UsageError(f"--resume {path}: that run has finished; see its result.json.")
        RunFolder._refuse_other_kinds(path)
        try:
            probe(path)
        except OSError as error:
            raise UsageError(f"--resume {path}: cannot write to it: {error.strerror}.") from None

    @staticmethod
    def check(path: Path) -> None:
        """Show that the folder holds a run, finished or not.

        Raises:
            UsageError: it holds none.
        """
        if not (path / "config.toml").is_file():
            raise UsageError(
                f"--resume {path}: there is no config.toml in it, so it is no run folder. Name the folder "
                "that a training has written, as its last line says."
            )

    @staticmethod
    def _refuse_other_kinds(path: Path) -> None:
        """Refuse links, FIFOs and devices in the place of files, which would be written to or waited for."""
        for name in _FILES:
            try:
                kind = kind_of((path / name).lstat().st_mode)
            except OSError:
                continue  # it is not there yet
            if kind is not None:
                raise UsageError(
                    f"--resume {path}: {name} in it is {kind}, and a run writes to a file. Move it away."
                )

    @staticmethod
    def has_finished(path: Path) -> bool:
        """Return whether the folder holds a run that nothing is missing of."""
        return (path / "result.json").is_file()

    @staticmethod
    def read_result(path: Path) -> dict[str, Any]:
        """Return the result of a finished run.

        Raises:
            UsageError: its file cannot be read.
        """
        file = path / "result.json"
        try:
            found = parse_json(read_text(file, most=_LINE))
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UsageError(f"{file} is damaged: it is no JSON object.")
        return found

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Store the resolved settings."""
        path = self.path / "config.toml"
        with _telling(path, "Choose another --out."):
            write_whole(path, [tomli_w.dumps(dict(config))], identity=claim(self.path))

    def begin(self, session: Mapping[str, Any]) -> None:
        """Note a start of the run; what was written after the step it starts from is taken back.

        A run that was killed has gone on after its last checkpoint; those steps are about to be taken again.
        """
        with _telling(self.path, self._goes_on):
            identity = claim(self.path)
            remove_file_drafts(self.path, identity)
        for name in _BY_STEP:
            path = self.path / name
            with _telling(path, self._goes_on):
                _cut(path, after=session["step"], identity=identity)
        path = self.path / "sessions.jsonl"
        with _telling(path, self._goes_on), path.open("a", encoding="utf-8") as stream:
            stream.write(json_line({**session, "provenance": provenance()}))

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one line per step to ``metrics.jsonl``."""
        self._append("metrics.jsonl", rows)

    def ranks(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one line per rank to ``ranks.jsonl``."""
        self._append("ranks.jsonl", rows)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Append one line to ``evaluations.jsonl``."""
        self._append("evaluations.jsonl", [row])

    def finish(self, result: Result) -> None:
        """Write ``result.json``."""
        path = self.path / "result.json"
        with _telling(path, self._goes_on):
            record = {**result.as_dict(), "provenance": provenance()}
            write_json(path, record, identity=claim(self.path))

    def close(self) -> None:
        """Write what could not be written before, or report it."""
        self._lines.close()

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._lines.append(self.path / name, (json_line(row) for row in rows))

    @property
    def _goes_on(self) -> str:
        return (
            "The run ends here; its checkpoints are whole, "
            f"and it goes on with --resume {self.path} once that is mended."
        )


@contextmanager
def _telling(path: Path, then: str) -> Iterator[None]:
    """Say which file cannot be written, and what to do `then`."""
    try:
        yield
    except OSError as error:
        raise Error(f"cannot write to {path}: {error.strerror}. {then}") from error


def _cut(path: Path, *, after: int, identity: str) -> None:
    """Keep the whole lines of the steps up to `after`."""
    if lies_at(path):
        with open_regular(path, follow=False) as stream:
            write_whole(path, _kept(stream, after), identity=identity)


def _kept(stream: IO[bytes], after: int) -> Iterator[str]:
    while (line := stream.readline(_LINE)).endswith(b"\n"):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if type(step) is not int:
            return
        if step <= after:
            yield line.decode(errors="replace")
    # The last line was half written when the run was killed.
