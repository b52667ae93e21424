"""Sends a tensor from rank 0 to every other rank and back, within and across nodes.

Run it with ``torchrun --nproc-per-node 3 examples/tutorial/message_passing.py``, or with a script of `jobs`.
"""

import argparse
import socket
import time

import torch
import torch.distributed as dist
from place import Place, check_address, connect, find_place


def there_and_back(place: Place, numbers: torch.Tensor, peer: int) -> float:
    """Send the numbers from rank 0 to `peer`, which doubles and returns them; return the seconds it took."""
    begin = time.perf_counter()
    # >>> pair
    if place.rank == 0:
        dist.send(numbers, dst=peer)
        dist.recv(numbers, src=peer)  # every send has its receive, in the same order on both sides
    elif place.rank == peer:
        dist.recv(numbers, src=0)
        numbers *= 2
        dist.send(numbers, dst=0)
    # <<<
    if numbers.is_cuda:
        torch.cuda.synchronize()  # NCCL returns before the message has arrived
    return time.perf_counter() - begin


def around_the_ring(place: Place, device: torch.device) -> int:
    """Return the sum of all ranks' numbers 1, 2, ..., which go once around the ring."""
    passing = torch.full((1,), place.rank + 1.0, device=device)
    total = passing.clone()
    right, left = (place.rank + 1) % place.world_size, (place.rank - 1) % place.world_size
    for _ in range(place.world_size - 1):
        coming = torch.empty_like(passing)
        # >>> ring
        # All ranks send at once: with a blocking send each could wait for a receive that never starts.
        both = [dist.P2POp(dist.isend, passing, right), dist.P2POp(dist.irecv, coming, left)]
        for request in dist.batch_isend_irecv(both):
            request.wait()  # only now may either tensor be used
        # <<<
        total += coming
        passing = coming
    return int(total)


def main(count: int) -> None:
    place = find_place()
    check_address(place)
    device = connect(place)
    hosts: list[str] = [""] * place.world_size
    dist.all_gather_object(hosts, socket.gethostname())
    for peer in range(1, place.world_size):
        numbers = torch.ones(count, device=device) if place.rank == 0 else torch.empty(count, device=device)
        seconds = there_and_back(place, numbers, peer)
        if place.rank == 0:
            where = "within the node" if hosts[peer] == hosts[0] else "across nodes"
            print(f"rank 0 and rank {peer}, {where}: sum {int(numbers.sum())}, {1000 * seconds:.2f} ms")
    total = around_the_ring(place, device)
    if place.rank == 0:
        print(f"{place.world_size} ranks, around the ring: sum {total}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send messages between ranks.")
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="numbers in a message")
    # torch.distributed.launch passes it; LOCAL_RANK has the same number under every launcher of torch.
    parser.add_argument("--local-rank", "--local_rank", type=int, help="not used")
    main(parser.parse_args().count)
