"""Defines the fast forms of recipes (``--fast``): the same tasks in a fraction of the time.

They use a one-cycle schedule whose peak is ten times the usual rate. Source of the schedule: Smith, Topin,
"Super-convergence", 2018 (arXiv:1708.07120). The small residual network and its settings go back to the
fastest entries of DAWNBench (Coleman et al., 2017).
"""

from samestep.training.recipes.recipe import Recipe
from samestep.training.settings.run_options import RunOptions
from samestep.training.settings.training_settings import Settings

MNIST = Recipe(
    name="mnist",
    data="mnist",
    model="convnet",
    settings=Settings(
        epochs=1, batch_size=128, lr=0.1, schedule="one-cycle", weight_decay=5e-4, channels_last=True
    ),
)

FASHION_MNIST = Recipe(
    name="fashion-mnist",
    data="fashion-mnist",
    model="convnet",
    settings=Settings(
        epochs=5,
        batch_size=128,
        lr=0.1,
        schedule="one-cycle",
        weight_decay=5e-4,
        augment="crop:2,flip",
        channels_last=True,
    ),
)

CIFAR10 = Recipe(
    name="cifar10",
    data="cifar10",
    model="resnet9",
    settings=Settings(
        epochs=16,
        batch_size=512,
        lr=0.4,
        nesterov=True,
        weight_decay=5e-4,
        schedule="one-cycle",
        label_smoothing=0.1,
        augment="crop:4,flip,cutout:8",
        precision="auto",
        channels_last=True,
    ),
    options=RunOptions(evaluate_every=2),
)
