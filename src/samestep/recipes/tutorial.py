"""The trainings of the tutorials: handwritten digits, small and large, by the small convolutional network."""

from torch import nn

from samestep.data.image_set import ImageSet
from samestep.models.convnet import ConvNet
from samestep.recipes.recipe import Recipe
from samestep.training.settings import Settings


def convnet(images: ImageSet) -> nn.Module:
    """Return the tutorials' network for images of this size."""
    channels, height, _ = images.shape
    return ConvNet(channels=channels, size=height, classes=len(images.classes))


DIGITS = Recipe(
    name="digits",
    model=convnet,
    settings=Settings(epochs=10, batch_size=64, lr=0.1, schedule="one-cycle", weight_decay=5e-4),
)

MNIST = Recipe(
    name="mnist",
    model=convnet,
    settings=Settings(epochs=3, batch_size=128, lr=0.1, schedule="one-cycle", weight_decay=5e-4),
)
