"""A program for fault tests: ``samestep train`` in which SIGUSR2 raises an exception, wherever it is.

samestep run -n N chaotic_training.py [train ARGUMENTS]

It takes its time over each step: on a fast machine it would otherwise end before all faults have struck.
"""

import signal
import sys
import time

PACE_S = 0.01


class Chaos(Exception):
    """An exception that no part of a training expects."""


def strike(number, frame):
    raise Chaos(f"signal {number} at {frame.f_code.co_filename}:{frame.f_lineno}")


def paced(epoch):
    def slowly(self, position=None):
        for batch in epoch(self, position):
            if self._options.shuffle:  # the training set
                time.sleep(PACE_S)
            yield batch

    return slowly


if __name__ == "__main__":
    from samestep.cli.main import run_command
    from samestep.training.data.loader import ImageLoader

    ImageLoader.epoch = paced(ImageLoader.epoch)
    signal.signal(signal.SIGUSR2, strike)
    sys.exit(run_command(["train", *sys.argv[1:]]))
