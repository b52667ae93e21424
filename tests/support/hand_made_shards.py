"""Makes steps with given gradients, whose sums depend only on the order."""

import hashlib

import torch
from torch import nn

from samestep.parallel.exact.logical_shards import Exact

DIGESTS = {
    5: "08550222c8deb2d5",
    7: "29f3be9cc07dc772",
    8: "2ed956084af3f3cd",
    11: "5d6f2db4196a4ad8",
}
"""Of the sums of so many shards, as one worker made them when whole nodes of the tree were exchanged."""
LARGE = 271_003
"""Elements of a tensor that is larger than a piece of shared memory."""
LARGE_DIGESTS = {6: "84f6ae64787fcdb3", 8: "bf936e993b5ad42f"}
"""With a tensor that is so large."""


class Made(nn.Module):
    """Parameters and buffers of all types and layouts."""

    def __init__(self, elements):
        super().__init__()
        zeros = {
            "matrix": torch.zeros(30, 7),
            "images": torch.zeros(6, 5, 3, 3).to(memory_format=torch.channels_last),
            "large": torch.zeros(elements),
            "halves": torch.zeros(33, dtype=torch.bfloat16),
            "doubles": torch.zeros(9, dtype=torch.float64),
            "waves": torch.zeros(5, dtype=torch.complex64),
            "rare": torch.zeros(2, 11),
            "unused": torch.zeros(3),
        }
        for name, value in zeros.items():
            self.register_parameter(name, nn.Parameter(value))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("phases", torch.zeros(3, dtype=torch.complex64))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))


def numbers(like, generator):
    """Return fractions that no type holds exactly, in another layout than `like`."""
    if like.is_complex():
        return torch.complex(numbers(like.real, generator), numbers(like.imag, generator))
    drawn = torch.randint(-9999, 9999, like.shape, generator=generator)
    return (drawn / 7).to(like.dtype)


def digest_of(world, shards, elements=1003):
    """Take two steps, in the second of which shards are without samples; return the digest of all sums."""
    made = Made(elements)
    exact = Exact(made, shards=shards, world=world)
    digest = hashlib.sha256()
    for step, samples in enumerate((3 * shards, shards // 2)):
        for shard in exact.shards(step):
            if not range(samples)[shard.of(samples)]:
                continue
            generator = torch.Generator().manual_seed(1000 * step + shard.index)
            for name, parameter in made.named_parameters():
                if name != "unused" and (name != "rare" or shard.index % 3 == 1):
                    parameter.grad = numbers(parameter.detach(), generator)
            made.mean += numbers(made.mean, generator)
            made.phases += numbers(made.phases, generator)
            made.count += shard.index
            made.seen[shard.index % 3] = True
        for parameter in made.parameters():
            digest.update(b"none" if parameter.grad is None else bytes_of(parameter.grad))
        made.zero_grad()
        for buffer in made.buffers():
            digest.update(bytes_of(buffer))
    exact.check()
    return digest.hexdigest()[:16]


def bytes_of(tensor):
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
