"""Measures what authentication adds to a start: Gloo over torch's store, and a proved group over ours."""

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from datetime import timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from samestep.ranks.rendezvous.job_secret import job_key, shared_secret
from samestep.ranks.rendezvous.network_store import NetworkStore, close_all, serve
from samestep.ranks.world.gloo_groups import protect_groups

HOST, LIMIT_S = "127.0.0.1", 30.0


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
    rank: int, size: int, ports: list[int], variables: dict[str, str], barrier: Barrier, took: "Queue[float]"
) -> None:
    protect_groups()  # those over torch's store stay as they are
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", **variables}
    for i, port in enumerate(ports):
        barrier.wait()
        begin = time.perf_counter()
        key = job_key(os.environ, "store") if i % 2 else b""
        store = (torchs, ours)[i % 2](rank, port, size, key)
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
        ports = [free_port() for _ in range(2 * rounds + 2)]
        took: Queue[float] = context.Queue()
        barrier = context.Barrier(size)
        begin = time.perf_counter()
        with shared_secret() as secret:
            made = time.perf_counter() - begin
            ranks = [
                context.Process(target=measure, args=(rank, size, ports, secret.variables, barrier, took))
                for rank in range(size)
            ]
            for process in ranks:
                process.start()
            seconds = [took.get() for _ in ports][2:]  # the first of each warms up
            for process in ranks:
                process.join()
        torch_ms, own_ms = (1e3 * statistics.median(seconds[i::2]) for i in range(2))
        print(
            f"{size} ranks: torch's store {torch_ms:.1f} ms, ours {own_ms:.1f} ms, "
            f"{own_ms - torch_ms:+.1f} ms; the secret {1e3 * made:.2f} ms"
        )


if __name__ == "__main__":
    main()
