"""Opening the store that all ranks reach."""

import pytest

from samestep.base.errors import WorldError
from samestep.base.place import Place
from samestep.world import store
from samestep.world.detect import given

MAIN = Place(rank=0, size=2, local_size=2)


def opened(monkeypatch, answer):
    """Open the store of rank 0 where torch's answers like `answer`; return the options of each attempt."""
    attempts = []

    def tcp_store(*_address, **options):
        attempts.append(options)
        return answer(**options)

    monkeypatch.setattr(store, "TCPStore", tcp_store)
    store.open_store({}, given(MAIN, {}), master=("127.0.0.1", 29500), timeout_s=5)
    return attempts


def test_a_torch_built_without_libuv_gets_the_other_server(monkeypatch):
    from torch.distributed import HashStore

    def without_libuv(*, use_libuv=True, **_options):
        if use_libuv:
            raise RuntimeError("use_libuv was requested but PyTorch was build without libuv support")
        return HashStore()

    first, second = opened(monkeypatch, without_libuv)

    assert "use_libuv" not in first
    assert second["use_libuv"] is False


def test_a_taken_port_is_told_with_what_to_do(monkeypatch):
    def taken(**_options):
        raise RuntimeError("The server socket has failed to listen: EADDRINUSE")

    with pytest.raises(WorldError, match=r"port 29500 is taken on .* Set MASTER_PORT to a free one"):
        opened(monkeypatch, taken)
