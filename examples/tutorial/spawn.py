"""`ddp.py` without a launcher: the command starts the workers of one node, by torch.multiprocessing.

One node with two workers: ``python examples/tutorial/spawn.py -n 1 -g 2 --synthetic``. On two nodes, each
with four, this runs on each with the same MASTER_ADDR and MASTER_PORT and with its own node rank::

    MASTER_ADDR=node0 MASTER_PORT=29500 python examples/tutorial/spawn.py -n 2 -g 4 -nr 0 --data DIR
"""

import argparse
import os
import socket
import sys

import ddp
import torch.multiprocessing as mp
from options import parsed, training_parser
from place import Place


def worker(local_rank: int, options: argparse.Namespace) -> None:
    """Run one worker; spawn passes its number on this node as the first argument."""
    # >>> rank
    rank = options.node_rank * options.workers + local_rank
    place = Place(rank, local_rank, options.nodes * options.workers)
    # <<<
    ddp.main(options, place)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main() -> None:
    parser = training_parser("Train on MNIST, by spawned workers.", batch_size=96, lr=0.05)
    parser.add_argument("-n", "--nodes", type=int, default=1, help="number of nodes")
    parser.add_argument("-g", "--workers", type=int, default=1, help="workers on each node, one per GPU")
    parser.add_argument("-nr", "--node-rank", type=int, default=0, help="number of this node, from 0")
    options = parsed(parser)
    if min(options.nodes, options.workers) < 1:
        parser.error(f"-n is {options.nodes} and -g is {options.workers}; give at least 1 of each")
    if not 0 <= options.node_rank < options.nodes:
        parser.error(f"-nr is {options.node_rank}; give 0 to {options.nodes - 1}")
    if options.nodes == 1:  # several nodes have to agree on these; one node can take any free port
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(free_port()))
    # >>> spawn
    try:
        mp.spawn(worker, nprocs=options.workers, args=(options,))
    except mp.ProcessExitedException as ended:
        sys.exit(ended.exit_code)  # the worker has printed why
    # <<<


if __name__ == "__main__":
    main()
