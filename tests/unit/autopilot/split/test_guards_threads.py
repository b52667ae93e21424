"""The state that a model's forward can reach is read while a thread of the script changes it."""

import threading
from collections import deque

import pytest
from torch import nn

from samestep.autopilot.split.guards import python_state
from samestep.autopilot.state.saved_state import SavedState

SEEN, LATEST = set(), deque(maxlen=8)


class Watched(nn.Module):
    level = 1

    def forward(self, x):
        return x * len(SEEN) * len(LATEST)


@pytest.mark.usefixtures("_frequent_switches")
@pytest.mark.parametrize("read", [python_state, SavedState], ids=["guards", "saved"])
def test_a_thread_changes_what_a_model_refers_to(read):
    model, over = Watched(), threading.Event()

    def change():
        number = 0
        while not over.is_set():
            number += 1
            SEEN.add(number)
            LATEST.append(number)
            setattr(model, f"latest{number % 3}", number)
            setattr(Watched, f"level{number % 3}", number)
            if number % 3 == 0:
                SEEN.clear()
                for one in range(3):
                    delattr(model, f"latest{one}")
                    delattr(Watched, f"level{one}")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(400):
            read(model)
    finally:
        over.set()
        thread.join()
