"""Containers are copied with other items and fields, whatever their names."""

from samestep.hooks.raw_containers import with_items


class Named(dict):
    """A dict with a field beside its items."""


def test_items_and_fields_of_similar_names_are_both_replaced():
    """Otherwise the item of a slice would stay in the output of the whole batch."""
    before = Named(xpart=1, other=2)
    before.part = 3
    made = with_items(before, {"xpart": 10, "other": 20, ".part": 30})
    assert (type(made), dict(made), made.part) == (Named, {"xpart": 10, "other": 20}, 30)
