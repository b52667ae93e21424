"""Measures what authentication adds to a start: Gloo over torch's store, and a proved group over ours."""

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from datetime import timedelta
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from samestep.ranks.rendezvous.job_secret import job_key, shared_secret
from samestep.ranks.rendezvous.network_store import NetworkStore, close_all, serve
from samestep.ranks.world.protected_groups import protect_groups

HOST, LIMIT_S = "127.0.0.1", 30.0

Sync = tuple[Barrier, "Queue[float]"]


def torchs(rank: int, port: int, size: int, _: bytes) -> Store:
    return TCPStore(
        HOST,
        port,
        size,
        is_master=rank == 0,
        timeout=timedelta(seconds=LIMIT_S),
        wait_for_workers=False,
        multi_tenant=True,
    )


def ours(rank: int, port: int, _: int, key: bytes) -> Store:
    if rank == 0:
        return serve(HOST, port, key, everywhere=False)
    store = NetworkStore(HOST, port, key)
    store.reach(LIMIT_S)
    return store


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def measure(
    rank: int, size: int, starts: int, port: "Synchronized[int]", variables: dict[str, str], sync: Sync
) -> None:
    barrier, took = sync
    protect_groups()  # those over torch's store stay as they are
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", **variables}
    for i in range(starts):
        if rank == 0:
            port.value = free_port()  # earlier it could be taken meanwhile
        barrier.wait()
        begin = time.perf_counter()
        key = job_key(os.environ, "store") if i % 2 else b""
        make = partial((torchs, ours)[i % 2], rank, port.value, size, key)
        if rank == 0:
            store = make()
        barrier.wait()  # a client of torch's that comes first pauses for up to a second
        if rank > 0:
            store = make()
        dist.init_process_group("gloo", store=PrefixStore("start", store), rank=rank, world_size=size)
        if rank == 0:
            took.put(time.perf_counter() - begin)
        dist.barrier()
        dist.destroy_process_group()
        barrier.wait()
        close_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=16)
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("fork")
    for size in (2, 4, 8):
        starts = 2 * rounds + 2  # the first of each warms up
        took: Queue[float] = context.Queue()
        port: Synchronized[int] = context.Value("i", 0)
        sync = context.Barrier(size), took
        begin = time.perf_counter()
        with shared_secret() as secret:
            made = time.perf_counter() - begin
            ranks = [
                context.Process(target=measure, args=(rank, size, starts, port, secret.variables, sync))
                for rank in range(size)
            ]
            for process in ranks:
                process.start()
            seconds = [took.get() for _ in range(starts)][2:]
            for process in ranks:
                process.join()
        torch_ms, own_ms = (1e3 * statistics.median(seconds[i::2]) for i in range(2))
        print(
            f"{size} ranks: torch's store {torch_ms:.1f} ms, ours {own_ms:.1f} ms, "
            f"{own_ms - torch_ms:+.1f} ms; the secret {1e3 * made:.2f} ms"
        )


if __name__ == "__main__":
    main()
