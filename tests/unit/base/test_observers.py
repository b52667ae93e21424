"""Observers run around what they observe, and no longer than they are subscribed."""

from contextlib import contextmanager, nullcontext

import pytest

from samestep.base.observers import Observers


class Log:
    """Events in their order."""

    def __init__(self):
        self.events = []

    def observer(self, name):
        @contextmanager
        def observe(subject):
            self.events.append(f"{name} begins {subject}")
            try:
                yield
            finally:
                self.events.append(f"{name} ends {subject}")

        return observe


def test_the_operation_runs_within_the_contexts_of_its_observers():
    saves, log = Observers(), Log()
    with (
        saves.subscribed(log.observer("outer")),
        saves.subscribed(log.observer("inner")),
        saves.around("file", nullcontext()),
    ):
        log.events.append("saves")

    begins, ends = ["outer begins file", "inner begins file"], ["inner ends file", "outer ends file"]
    assert log.events == [*begins, "saves", *ends]


def test_without_observers_the_inner_context_is_returned_itself():
    saves, log, plain = Observers(), Log(), nullcontext()
    with (
        pytest.raises(ValueError, match="disk"),
        saves.subscribed(log.observer("only")),
        saves.around("file", plain),
    ):
        raise ValueError("disk")

    assert log.events == ["only begins file", "only ends file"]
    assert saves.around("file", plain) is plain
