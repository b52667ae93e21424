"""A store over authenticated connections behaves as torch's store, also when torch's C++ calls it."""

import os
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore

from samestep.base.errors import PeerLost
from samestep.ranks.rendezvous.authentication import derived
from samestep.ranks.rendezvous.network_store import NetworkStore, base_of, serve

KEY = derived(b"a secret", "test")


@pytest.fixture
def served():
    return serve("127.0.0.1", 0, KEY, everywhere=False)


@pytest.fixture
def other(served):
    return NetworkStore("127.0.0.1", served.port, KEY)


def test_a_posted_value_is_read_by_another_client_with_and_without_a_prefix(served, other):
    PrefixStore("a", served).set("key", "value")

    assert PrefixStore("a", other).get("key") == b"value"
    assert other.get("a/key") == b"value"
    assert other.multi_get(["a/key", "a/key"]) == [b"value"] * 2
    assert other.check(["a/key"])
    assert not PrefixStore("b", other).check(["key"])


def test_add_returns_the_sum_over_all_clients(served, other):
    assert [served.add("n", 1), other.add("n", 5), PrefixStore("p", other).add("n", -2)] == [1, 6, -2]
    served.set("text", "no number")
    with pytest.raises(DistStoreError):
        other.add("text", 1)


def test_compare_set_replaces_only_the_expected_value(served):
    store = PrefixStore("p", served)
    assert store.compare_set("key", "x", "y") == b"x"  # no value: returns the expected one, as torch does
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "other", "second") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"


def test_keys_are_counted_and_deleted(served):
    store = PrefixStore("p", served)
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.num_keys() == 2
    assert [store.delete_key("a"), store.delete_key("a")] == [True, False]
    assert served.num_keys() == 1


def test_a_reader_that_waits_for_a_key_does_not_block_other_requests(served, other):
    values = []
    thread = threading.Thread(target=lambda: values.append(other.get("late")))
    thread.start()
    time.sleep(0.05)
    other.set("meanwhile", "1")
    served.set("late", "value")
    thread.join(5)
    assert values == [b"value"]


def test_a_missing_key_is_an_error_after_the_timeout(other):
    begin = time.monotonic()
    with pytest.raises(DistStoreError, match="none"):
        other.wait(["none"], timedelta(seconds=0.1))
    other.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(DistStoreError):
        PrefixStore("p", other).get("none")
    assert 0.2 <= time.monotonic() - begin < 5


def test_a_closed_store_raises_an_error_of_torch(served, other):
    other.set("key", "value")
    served.close()
    with pytest.raises(DistNetworkError):
        other.get("key")
    with pytest.raises(PeerLost):
        NetworkStore("127.0.0.1", other.port, KEY).reach(0.05)


def test_two_stores_of_a_process_share_a_server_until_both_are_closed(served):
    second = serve("127.0.0.1", served.port, KEY, everywhere=False)
    second.set("key", "value")
    served.close()
    assert second.get("key") == b"value"
    second.close()
    third = serve("127.0.0.1", second.port, KEY, everywhere=False)
    assert not third.check(["key"])


def test_a_store_is_closed_with_the_last_object_that_it_is_kept_for(served):
    class User:
        pass

    first, second = User(), User()
    served.keep_for(first)
    served.keep_for(second)
    del first
    served.set("key", "value")
    del second
    with pytest.raises(DistNetworkError):
        served.set("key", "value")


def test_a_kept_server_is_used_by_the_next_group(served, other):
    served.keep_server()
    served.close()
    other.set("key", "value")
    following = serve("127.0.0.1", other.port, KEY, everywhere=False)
    assert following.get("key") == b"value"


def test_a_forked_process_uses_its_own_connection(served, other):
    other.set("key", "value")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, other.get("key"))  # by a connection of its own
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"value"
    assert other.get("key") == b"value"
    os.close(reader)
    os.close(writer)


def test_the_base_store_is_found_below_prefixes_of_torch(served):
    assert base_of(PrefixStore("a", PrefixStore("b", served))) is served
    assert base_of(PrefixStore("a", dist.HashStore())) is None
