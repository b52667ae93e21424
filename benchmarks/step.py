"""What the trainer costs over a hand-written loop: the same steps, one worker, interleaved in one run.

    python benchmarks/step.py [--rounds 15] [--steps 60] [--batch-size 64]

Each round trains the tutorial ConvNet on MNIST-shaped images for `steps` steps twice: by the trainer (clock,
journal and all) and by a loop of plain PyTorch over the same batches. Prints the median of each, the median
of the rounds' differences, and whether the weights came out equal, bit for bit.
"""

import argparse
import json
import time
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from samestep.parallel.gradients.agreement import weights_sha256
from samestep.parallel.sharding import epoch_order
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.data.image_set import ImageSet
from samestep.training.loop.training_loop import Callbacks, Training
from samestep.training.networks import ConvNet
from samestep.training.settings import Settings


def synthetic(count: int) -> ImageSet:
    draw = torch.Generator().manual_seed(0)
    return ImageSet(
        name="synthetic",
        split="train",
        images=torch.randint(0, 256, (count, 1, 28, 28), generator=draw, dtype=torch.uint8),
        labels=torch.randint(0, 10, (count,), generator=draw),
        classes=tuple("0123456789"),
        mean=(0.1307,),
        std=(0.3081,),
    )


def trained(images: ImageSet, settings: Settings) -> tuple[float, str]:
    """Return seconds per step of the trainer, and the digest of its weights."""
    training = Training(
        ConvNet, train_set=images, test_set=images.subset(1), settings=settings, world=SoloWorld()
    )
    result = training.run(Callbacks.disabled(SoloWorld()))
    return result.seconds / result.steps, result.weights_sha256


def by_hand(images: ImageSet, settings: Settings) -> tuple[float, str]:
    """Return seconds per step of a loop as one writes it, and the digest of its weights."""
    torch.manual_seed(settings.seed)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum, fused=True)
    order = torch.from_numpy(epoch_order(len(images), seed=settings.seed, epoch=0).astype(np.int64))
    scale, shift = 1 / (255 * images.std[0]), images.mean[0] / images.std[0]
    model.train()
    began = time.perf_counter()
    for ids in order.split(settings.batch_size):
        inputs = images.images[ids].to(torch.float32).mul_(scale).sub_(shift)
        loss = F.cross_entropy(model(inputs), images.labels[ids])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - began
    return seconds / -(-len(images) // settings.batch_size), digest(model)


def digest(model: nn.Module) -> str:
    return weights_sha256(model.state_dict())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = synthetic(options.steps * options.batch_size)
    settings = Settings(epochs=1, batch_size=options.batch_size, lr=0.01)

    trained(images, settings), by_hand(images, settings)  # warm up
    pairs = []
    for round_number in range(options.rounds):
        sides = [trained, by_hand] if round_number % 2 else [by_hand, trained]
        seen = {side: side(images, settings) for side in sides}
        pairs.append((seen[trained], seen[by_hand]))
    ours, hand = (median(pair[k][0] for pair in pairs) for k in (0, 1))
    difference = median(a[0] - b[0] for a, b in pairs)
    print(
        json.dumps(
            {
                "trainer_step_s": round(ours, 7),
                "by_hand_step_s": round(hand, 7),
                "median_difference_s": round(difference, 7),
                "median_ratio": round(median(a[0] / b[0] for a, b in pairs), 4),
                "weights_equal": all(a[1] == b[1] for a, b in pairs),
                "rounds": options.rounds,
                "steps": options.steps,
                "batch_size": options.batch_size,
                "threads": options.threads,
            }
        )
    )


if __name__ == "__main__":
    main()
