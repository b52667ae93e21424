import os
import signal

import pytest

from samestep.launch.local import supervisor
from samestep.launch.local.supervisor import Signals, in_foreground


@pytest.mark.parametrize(
    ("number", "foreground", "shared"),
    [
        (signal.SIGINT, True, True),  # the keyboard tells the whole group
        (signal.SIGINT, False, False),
        (signal.SIGTERM, True, False),
        (signal.SIGHUP, True, False),
    ],
)
def test_only_ctrl_c_of_the_foreground_is_left_to_the_keyboard(monkeypatch, number, foreground, shared):
    monkeypatch.setattr(supervisor, "in_foreground", lambda: foreground)
    signals = Signals(wakeup=-1)
    signals.take(number, None)

    assert signals.reach_workers is shared


def test_without_a_terminal_nothing_is_in_the_foreground(tmp_path):
    assert in_foreground(str(tmp_path / "none")) is False
    assert in_foreground(os.devnull) is False
