"""The textbook: when backward is over, average one parameter after the other."""

import torch

from samestep.replicas.bucket import dense_gradient
from samestep.replicas.running import average_statistics
from samestep.replicas.synchroniser import Synchroniser


class Reference(Synchroniser):
    """One blocking all-reduce per parameter: slow, and simple enough to be believed."""

    def _exchange(self) -> None:
        world = self._job.world
        parameters = list(self._job.parameters.values())
        used = torch.tensor(
            [float(parameter.grad is not None) for parameter in parameters], device=world.device
        )
        world.all_reduce(used)
        self.gradient_bytes = 0
        for (name, parameter), ranks in zip(self._job.parameters.items(), used.tolist(), strict=True):
            if not ranks:
                continue  # no rank has a gradient: it stays None, as in serial training
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grad = dense_gradient(name, parameter)
            assert grad is not None
            # A buffer of its own: a gradient may be strided, and collectives want contiguous memory.
            average = grad.contiguous()
            self.gradient_bytes += average.nbytes
            world.average_later(average).wait()
            grad.copy_(average)
        average_statistics(world, self._job.statistics)
