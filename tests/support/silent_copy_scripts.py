"""Native scripts with a training loop below a line that creates process groups of some ranks, or none."""

from textwrap import dedent

TRAINS = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
{group}
model = torch.nn.Linear(4, 2)
model = DistributedDataParallel(model) if dist.is_initialized() else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.ones(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step > 10 and not (dist.is_initialized() and dist.get_rank()):
        print("step", step)
if dist.is_initialized():
    dist.destroy_process_group()
"""

NO_GROUP = "if os.environ.get('JOIN'): dist.init_process_group('gloo')"
GROUPS_OF_ONE = "dist.init_process_group('gloo', 'tcp://127.0.0.1:0', rank=0, world_size=1)"
ONE_PER_NODE = (
    "dist.init_process_group('gloo', 'tcp://127.0.0.1:29613', rank=int(os.environ['LOCAL_RANK']), "
    "world_size=int(os.environ['LOCAL_WORLD_SIZE']))"
)
HALVES = (
    "dist.init_process_group('gloo', f'file://{os.getcwd()}/half-' + str(int(os.environ['RANK']) // 2), "
    "rank=int(os.environ['RANK']) % 2, world_size=2)"
)
BY_SLURM = (
    "dist.init_process_group('gloo', rank=int(os.environ.get('SLURM_PROCID', 0)), "
    "world_size=int(os.environ.get('SLURM_NTASKS', 1)))"
)
BY_OPEN_MPI = (
    "dist.init_process_group('gloo', rank=int(os.environ['OMPI_COMM_WORLD_RANK']), "
    "world_size=int(os.environ['OMPI_COMM_WORLD_SIZE']))"
)


def script(group: str) -> str:
    """Return a training script of 100 steps that prints from the eleventh on.

    Args:
        group: the line that creates the process group, or none.
    """
    return dedent(TRAINS.format(group=group))
