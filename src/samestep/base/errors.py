"""Defines the exceptions of samestep; scripts import them from `samestep.errors`.

The hierarchy, each subclass indented under its base::

    Exception
      Error                  anything samestep refuses or reports
        UsageError           the input is wrong (flag, file, environment); nothing has run
          DetectionError     the launcher's variables contradict each other or lack something
          DataError          a data set is missing, damaged or of another format
        WorldError           the ranks could not communicate
          PeerLost           a rank died or did not answer in time
          OutOfStep          replicas differ, or ranks disagree about the next step
            StepsDiffer      a rank has left the training loop, another one takes a further step
        DeviceFailed         a device failed, and the process can compute nothing on it any more
        CheckpointError      there is no usable checkpoint
        Preempted            a rank was preempted and saved a checkpoint; the run can resume
        WorkerFailed         a worker ended with an error; carries the exit code of the run
      AssertionError
        Nonconforming        a function is not the collective that `samestep_lab.testing` checked it as

Every message states what was found, with the values, and what to do next. The command line prints it
without a traceback and exits with `exit_code`.
"""

_LONGEST = 900
"""Characters of the longest message that is printed in full; it can quote a value of any length."""

PREEMPTED = 75
"""The exit code of a preempted run, which can be resumed: EX_TEMPFAIL of sysexits.h."""

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 + SIGINT, as in a shell."""


class Error(Exception):
    """An error that samestep reports; the base class of all its exceptions."""

    exit_code = 2
    """Exit code of a command that ends with this error."""


class UsageError(Error, ValueError):
    """The input is wrong; nothing has run yet and nothing was changed."""


class DetectionError(UsageError):
    """The environment variables that give this process its rank are missing or contradict each other."""


class DataError(UsageError):
    """A data set is missing, damaged, or of another format than expected."""


class WorldError(Error):
    """The ranks of a job could not communicate."""

    exit_code = 1


class PeerLost(WorldError):  # noqa: N818 - reads as the event it is
    """Another rank died or did not answer in time."""


class OutOfStep(WorldError):  # noqa: N818 - reads as the event it is
    """Replicas differ, or ranks disagree about the next step."""


class StepsDiffer(OutOfStep):
    """A rank has left the training loop while another one takes a further step."""


class DeviceFailed(Error):  # noqa: N818 - reads as the event it is
    """A device has failed, and the process can compute nothing on it any more."""

    exit_code = 1


class CheckpointError(Error):
    """There is no usable checkpoint at the given path."""


class Preempted(Error):  # noqa: N818 - reads as the event it is
    """A rank was preempted: it finished the step and saved a checkpoint, and the run can be resumed."""

    exit_code = PREEMPTED


class WorkerFailed(Error):  # noqa: N818 - reads as the event it is
    """A worker of the run ended with an error.

    The message has what failed first, and where; the exit code is that of the whole run, and never 0.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code or 1


for _kind in [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Exception)]:
    _kind.__module__ = "samestep.errors"  # a traceback shows the name under which a script imports it


def one_line(message: str) -> str:
    r"""Return a message as one printable line for a terminal.

    >>> print(one_line("cannot read 'a\x1b[31m'\n  again"))
    cannot read 'a\x1b[31m' again
    """
    words = " ".join(message.split())
    line = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in words)
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"  # what failed, and what to do
