"""The plan of buckets covers each item once, within the limit, in the order of backward."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from samestep.parallel.gradients.bucketed import Item, plan_buckets

items = st.lists(st.builds(Item, st.integers(0, 100), st.sampled_from(["a", "b"])), max_size=40)
limits = st.integers(1, 150)


def test_the_plan_of_five_items_has_the_expected_buckets():
    kinds = ["a", "a", "b", "a", "a"]
    assert plan_buckets([Item(1, kind) for kind in kinds], bucket_bytes=2) == [[4, 3], [2], [1, 0]]


@given(items, limits)
def test_each_item_is_in_one_bucket(items, limit):
    plan = plan_buckets(items, bucket_bytes=limit)
    assert sorted(position for bucket in plan for position in bucket) == list(range(len(items)))
    assert all(plan)


@given(items, limits)
def test_a_bucket_is_of_one_kind_and_within_the_limit_or_a_single_item(items, limit):
    for bucket in plan_buckets(items, bucket_bytes=limit):
        assert len({items[position].kind for position in bucket}) == 1
        assert len(bucket) == 1 or sum(items[position].num_bytes for position in bucket) <= limit


@given(items, limits)
def test_items_and_buckets_are_in_the_order_of_backward(items, limit):
    plan = plan_buckets(items, bucket_bytes=limit)
    assert all(bucket == sorted(bucket, reverse=True) for bucket in plan)
    ready = [bucket[-1] for bucket in plan]
    assert ready == sorted(ready, reverse=True)


@given(items, limits)
def test_the_next_item_of_a_kind_does_not_fit_into_the_bucket_before(items, limit):
    plan = plan_buckets(items, bucket_bytes=limit)
    for kind in ("a", "b"):
        ours = [bucket for bucket in plan if items[bucket[0]].kind == kind]
        for bucket, following in itertools.pairwise(ours):
            held = sum(items[position].num_bytes for position in bucket)
            assert held + items[following[0]].num_bytes > limit
