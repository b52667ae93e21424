"""Image sets made up for tests."""

import torch

from samestep.training.data.image_set import ImageSet, LazyImages


def random_images(count, *, channels=1, side=6, seed=0):
    """Return `count` random images and labels; pixels differ from sample to sample."""
    draw = torch.Generator().manual_seed(seed)
    return ImageSet(
        name="random",
        split="train",
        images=torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=draw),
        labels=torch.randint(0, 10, (count,), generator=draw),
        classes=tuple("0123456789"),
        mean=tuple(0.1 * (c + 1) for c in range(channels)),
        std=tuple(0.2 * (c + 1) for c in range(channels)),
    )


def as_read(images, read=None):
    """Return the set as one whose images are read as they are needed, from memory or by `read`."""
    return LazyImages(
        name=images.name,
        split=images.split,
        read=read or images.images.__getitem__,
        labels=images.labels.tolist(),
        classes=images.classes,
        shape=images.shape,
        mean=images.mean,
        std=images.std,
    )
