"""The one exception family.

Drawn as a tree, a child indented under its parent::

    Exception
      Error                  anything samestep refuses or reports
        UsageError           your input is wrong (flag, file, environment); nothing has run
          DetectionError     the launcher's variables contradict each other or lack something
          DataError          a data set is missing, damaged or not what it says it is
        WorldError           ranks could not talk
          PeerLost           a rank died or fell silent
          OutOfStep          replicas differ, or ranks disagree about what to do next
        CheckpointError      no usable checkpoint here
        WorkerFailed         a worker ended with an error; carries the exit code of the run

Every message says what was found, with the values, and what to do next. The command line prints it
without a traceback and exits with `exit_code`.
"""

_LONGEST = 900
"""Characters of a message that is printed whole; it may quote a file or a flag of any length."""

PUT_OFF = 75
"""The exit code of a run that was asked to stop and can go on later: EX_TEMPFAIL of sysexits.h."""


class Error(Exception):
    """Anything samestep refuses or reports; the parent of all its exceptions."""

    exit_code = 2


class UsageError(Error, ValueError):
    """The input is wrong; nothing has run yet and nothing was changed."""


class DetectionError(UsageError):
    """The environment of this process does not say one clear thing about its place in a job."""


class DataError(UsageError):
    """A data set is missing, damaged, or not what it says it is."""


class WorldError(Error):
    """The ranks of a job could not talk to each other."""

    exit_code = 1


class PeerLost(WorldError):  # noqa: N818 - reads as the event it is
    """Another rank died or did not answer in time."""


class OutOfStep(WorldError):  # noqa: N818 - reads as the event it is
    """Replicas differ, or ranks disagree about what to do next."""


class CheckpointError(Error):
    """There is no usable checkpoint at the given place."""


class PutOff(Error):  # noqa: N818 - reads as the event it is
    """A rank was asked to stop: the step was finished, a checkpoint written, and the run can go on later."""

    exit_code = PUT_OFF


class WorkerFailed(Error):  # noqa: N818 - reads as the event it is
    """A worker of the run ended with an error.

    Args:
        message: what failed first, and where.
        exit_code: what the whole run exits with; never 0.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code or 1


def one_line(message: str) -> str:
    r"""Return a message as one line for a terminal, whatever it quotes.

    Args:
        message: may contain line ends, control characters and a quoted value of any length.

    >>> print(one_line("cannot read 'a\x1b[31m'\n  again"))
    cannot read 'a\x1b[31m' again
    """
    words = " ".join(message.split())
    line = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in words)
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"  # what failed, and what to do
