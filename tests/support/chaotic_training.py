"""A program for fault tests: ``samestep train`` in which SIGUSR2 raises an exception, wherever it is.

samestep run -n N chaotic_training.py [train ARGUMENTS]
"""

import signal
import sys


class Chaos(Exception):
    """What no part of a training expects."""


def strike(number, frame):
    raise Chaos(f"signal {number} at {frame.f_code.co_filename}:{frame.f_lineno}")


if __name__ == "__main__":
    from samestep.cli.main import run_command

    signal.signal(signal.SIGUSR2, strike)
    sys.exit(run_command(["train", *sys.argv[1:]]))
