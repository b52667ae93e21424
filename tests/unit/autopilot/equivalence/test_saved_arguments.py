"""Changes of a call in its arguments, beside tensors, are found and undone."""

import pytest
import torch

from samestep.autopilot.equivalence.saved_arguments import SavedArguments
from samestep.autopilot.split.call_plans import CallArguments


class Store:
    def __init__(self):
        self.items, self.last = [], None

    def put(self, value):
        self.items.append(value)


def setting(store, value):
    store.last = value


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (list, list.append),
        (dict, lambda given, value: given.update(found=value)),
        (set, set.add),
        (lambda: {"inner": []}, lambda given, value: given["inner"].append(value)),
        (lambda: [].append, lambda given, value: given(value)),
        (lambda: Store().put, lambda given, value: given(value)),
        (Store, Store.put),
        (Store, setting),
    ],
    ids=["list", "dict", "set", "nested", "method of a list", "bound method", "field", "attribute"],
)
def test_a_change_is_found_and_undone(make, change):
    argument = make()
    saved = SavedArguments(CallArguments((torch.ones(2), argument), {}))
    assert not saved.are_changed()

    change(argument, torch.zeros(2))
    assert saved.are_changed()
    saved.restore()

    assert not saved.are_changed()


def test_objects_that_refer_to_each_other_are_saved():
    one, other = Store(), Store()
    one.last, other.last = other, one
    saved = SavedArguments(CallArguments((), {"store": one}))
    other.put(1)

    assert saved.are_changed()
