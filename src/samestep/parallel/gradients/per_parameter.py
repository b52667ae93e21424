"""Averages one gradient after the other when backward has ended: the textbook algorithm."""

import torch

from samestep.parallel.gradients.bucket import dense_gradient
from samestep.parallel.gradients.running_statistics import average_statistics
from samestep.parallel.gradients.synchronizer import GradientSynchronizer


class Reference(GradientSynchronizer):
    """One blocking all-reduce per parameter: slow, but simple enough to verify the other synchronizers."""

    def _average(self) -> None:
        world = self._config.world
        parameters = list(self._config.parameters.values())
        used = torch.tensor(
            [float(parameter.grad is not None) for parameter in parameters], device=world.device
        )
        world.all_reduce(used)
        self.gradient_bytes = 0
        for (name, parameter), ranks in zip(self._config.parameters.items(), used.tolist(), strict=True):
            if not ranks:
                continue  # no rank has a gradient, so it stays None as in serial training
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grad = dense_gradient(name, parameter)
            assert grad is not None
            # Collectives need contiguous memory, and a gradient may be strided.
            average = grad.contiguous()
            self.gradient_bytes += average.nbytes
            world.average_later(average).wait()
            grad.copy_(average)
        average_statistics(world, self._config.statistics)
