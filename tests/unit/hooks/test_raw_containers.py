"""Containers are copied with other items and fields, whatever their names; objects get theirs back."""

from samestep.hooks.raw_containers import fields_of, restore_fields, with_items


class Named(dict):
    """A dict with a field beside its items."""


def test_items_and_fields_of_similar_names_are_both_replaced():
    """Otherwise the item of a slice would stay in the output of the whole batch."""
    before = Named(xpart=1, other=2)
    before.part = 3
    made = with_items(before, {"xpart": 10, "other": 20, ".part": 30})
    assert (type(made), dict(made), made.part) == (Named, {"xpart": 10, "other": 20}, 30)


class Counts:
    __slots__ = ("number", "other")


class CountsAgain(Counts):
    __slots__ = ("number",)


def test_a_slot_that_two_classes_define_is_that_of_the_derived_one():
    """Only this finds an object whose number is not restored after a trial call, so that it counts twice."""
    counts = CountsAgain()
    counts.number = 1
    before = fields_of(counts)
    counts.number += 1
    restore_fields(counts, before)
    assert (before, counts.number) == ({"number": 1}, 1)
