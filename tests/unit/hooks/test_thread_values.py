"""A value is bound for a block of one thread and its device threads, and no reference to it leaks."""

import gc
import sys
import threading
import weakref
from contextlib import suppress

import pytest
import torch

from samestep.hooks import thread_values
from samestep.hooks.thread_values import ThreadValue
from support.autograd_thread import autograd_in_another_thread


class Value:
    """An object that can be referred to weakly."""


@pytest.fixture
def other_thread():
    """Run a function on a thread of its own, to its end."""

    def run(fn):
        thread = threading.Thread(target=fn)
        thread.start()
        thread.join()

    return run


def test_a_block_binds_a_value_and_restores_the_previous_one():
    value, second = ThreadValue("default"), ThreadValue(0)
    with value.bound("outer"), second.bound(1):
        with suppress(KeyError), value.bound("inner"):
            assert (value.get(), second.get()) == ("inner", 1)
            raise KeyError
        assert value.get() == "outer"
    assert (value.get(), second.get()) == ("default", 0)


def test_binding_a_value_keeps_no_reference():
    value, content = ThreadValue(None), Value()
    before = sys.getrefcount(content)
    for _ in range(50):
        with value.bound(content):
            assert value.get() is content
    assert sys.getrefcount(content) == before


def test_another_thread_has_the_default(other_thread):
    value, seen = ThreadValue("default"), []
    with value.bound("here"):
        other_thread(lambda: seen.append(value.get()))
    assert seen == ["default"]


def test_a_thread_that_ends_frees_its_values(other_thread):
    value, slots = ThreadValue(None), []

    def run():
        with value.bound(Value()):
            slots.append(weakref.ref(thread_values.own_slot()))

    for _ in range(3):
        other_thread(run)
    gc.collect()
    assert [slot() for slot in slots] == [None] * 3


def test_a_backward_in_another_thread_has_the_values_of_its_caller():
    value, weight, seen = ThreadValue("default"), torch.ones(2, requires_grad=True), []
    weight.register_hook(lambda _: seen.append((threading.current_thread().name, value.get())))
    with autograd_in_another_thread(), value.bound("here"):
        weight.sum().backward()
    assert seen == [("autograd", "here")]
