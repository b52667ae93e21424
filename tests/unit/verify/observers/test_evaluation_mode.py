"""A mode that is not set back, before or after an evaluation, is noted; deliberate modes are not."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def data(seed):
    return TensorDataset(torch.randn(12, 4, generator=torch.Generator().manual_seed(seed)))


TRAIN, TEST = data(1), data(2)


class Training:
    """A model with batch norm or dropout, and its loop."""

    def __init__(self, part=None):
        self.model = nn.Sequential(nn.Linear(4, 6), part or nn.BatchNorm1d(6), nn.Linear(6, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def epoch(self, model=None):
        for (x,) in DataLoader(TRAIN, batch_size=4):
            self.optimizer.zero_grad()
            (model or self.model)(x).square().mean().backward()
            self.optimizer.step()

    def evaluate(self, dataset=TEST, times=1, model=None):
        with torch.no_grad():
            for (x,) in DataLoader(dataset, batch_size=4):
                for _ in range(times):
                    (model or self.model)(x)


def kept(part=None):
    training = Training(part)
    for _ in range(2):
        training.epoch()
        training.model.eval()
        training.evaluate()


def kept_with_gradients():
    training = Training()
    training.epoch()
    training.model.eval()
    for (x,) in DataLoader(TEST, batch_size=4):
        training.model(x)
    training.epoch()


def kept_without_effect():
    kept(nn.Dropout(0.0))


def undone():
    training = Training()
    for _ in range(2):
        training.model.train()
        training.epoch()
        training.model.eval()
        training.evaluate()


def frozen_statistics():
    training = Training()
    for _ in range(2):
        training.model.train()
        training.model[1].eval()
        training.epoch()
        training.model.eval()
        training.evaluate()


def set_again():
    """From the second epoch the script sets evaluation mode for training on purpose."""
    training = Training()
    training.epoch()
    for _ in range(2):
        training.model.eval()
        training.evaluate()
        training.model.train()
        training.model.eval()
        training.epoch()


def always_in_evaluation():
    training = Training()
    training.model.eval()
    for _ in range(2):
        training.epoch()
        training.evaluate()


def left(part=None):
    training = Training(part)
    for _ in range(2):
        training.epoch()
        training.evaluate()


def left_with_dropout():
    left(nn.Dropout(0.5))


def left_without_effect():
    left(nn.Dropout(0.0))


def uncertainty():
    training = Training(nn.Dropout(0.5))
    training.epoch()
    training.evaluate(times=5)


def on_training_data():
    training = Training()
    training.epoch()
    training.evaluate(TRAIN)


def new_statistics():
    training = Training()
    training.epoch()
    training.model.eval()
    training.evaluate()
    training.model.train()
    torch.optim.swa_utils.update_bn(DataLoader(data(1), batch_size=4), training.model)


def teacher():
    """A model in training mode computes targets for the same batch, and never trains itself."""
    training, teaching = Training(), Training()
    for (x,) in DataLoader(TRAIN, batch_size=4):
        with torch.no_grad():
            target = teaching.model(x)
        training.optimizer.zero_grad()
        (training.model(x) - target).square().mean().backward()
        training.optimizer.step()


def pseudo_labels():
    """Labels for the batch of a second loader, on which the model trains then."""
    training = Training()
    loaders = DataLoader(TRAIN, batch_size=4), DataLoader(TEST, batch_size=4)
    for (unlabeled,), (x,) in zip(*reversed(loaders), strict=True):
        with torch.no_grad():
            target = training.model(unlabeled)
        training.optimizer.zero_grad()
        (training.model(x).square() + (training.model(unlabeled) - target).square()).mean().backward()
        training.optimizer.step()


@pytest.mark.parametrize(
    ("script", "codes"),
    [
        (kept, ["eval-not-undone"]),
        (kept_with_gradients, ["eval-not-undone"]),
        (left, ["train-mode-in-evaluation"]),
        (left_with_dropout, ["train-mode-in-evaluation"]),
    ],
    ids=lambda script: getattr(script, "__name__", None),
)
def test_a_mistake_is_noted(noted, script, codes):
    assert noted(script) == codes


@pytest.mark.parametrize(
    "script",
    [
        kept_without_effect,
        undone,
        frozen_statistics,
        set_again,
        always_in_evaluation,
        left_without_effect,
        uncertainty,
        on_training_data,
        new_statistics,
        teacher,
        pseudo_labels,
    ],
    ids=lambda script: script.__name__,
)
def test_a_right_script_has_no_note(noted, script):
    assert noted(script) == []


@pytest.mark.parametrize(
    ("script", "line"), [(kept, "training.model.eval()"), (left, "(model or self.model)(x)")]
)
def test_a_note_names_the_line_with_the_mistake(named_line, script, line):
    assert line in named_line(script)
