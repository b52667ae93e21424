"""Defines the recipes with the settings of well-known tutorials."""

from samestep.training.recipes.recipe import Recipe
from samestep.training.settings.training_settings import Settings

DIGITS = Recipe(
    name="digits",
    data="digits",
    model="convnet",
    settings=Settings(epochs=10, batch_size=64, lr=0.1, schedule="one-cycle", weight_decay=5e-4),
)

MNIST = Recipe(
    name="mnist",
    data="mnist",
    model="convnet",
    settings=Settings(epochs=5, batch_size=100, lr=0.01, momentum=0.0),
)

FASHION_MNIST = Recipe(
    name="fashion-mnist",
    data="fashion-mnist",
    model="convnet",
    settings=Settings(epochs=10, batch_size=100, lr=0.01, momentum=0.9),
)

CIFAR10 = Recipe(
    name="cifar10",
    data="cifar10",
    model="resnet34",
    settings=Settings(
        epochs=60,
        batch_size=128,
        lr=0.01,
        weight_decay=1e-4,
        schedule="step",  # 0.01, 0.001, 0.0001
        step_epochs=20,
        augment="crop:4,flip",
    ),
)

SYNTHETIC = Recipe(
    name="synthetic",
    data="synthetic",
    model="resnet152",
    settings=Settings(epochs=1, batch_size=32, lr=0.01),
)
"""Measures training throughput in images per second; its labels are random."""
