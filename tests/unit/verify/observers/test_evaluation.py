"""Wrong results in evaluation mode are noted: dropped values, and spectral norm that is not begun."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm
from torch.utils.data import DataLoader, TensorDataset

from samestep.verify.probed_run import OF_EACH_RANK


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
    return training


def test_a_mode_that_one_rank_keeps_is_noted_there():
    """As where rank 0 alone calls ``model.train()`` after an evaluation of all ranks."""
    observers = [kind() for kind in OF_EACH_RANK]
    with ExitStack() as stack:
        for observer in observers:
            stack.enter_context(observer.attached())
        training = kept()
    codes = [note.code for observer in observers for note in observer.notes()]
    assert codes.count("eval-not-undone") == 1, training.model  # which the observers do not keep alive


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


def adversaries():
    """The modes of networks that train each other are a choice."""
    generator, judge = Training(), Training()
    for _ in range(2):
        generator.epoch()
        judge.epoch()
        generator.evaluate()


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
        adversaries,
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


X = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    """A model that drops values by a function."""

    def __init__(self, drop):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(4, 4), drop, nn.Linear(4, 1)
        self.mask = nn.Dropout(0.2)

    def forward(self, x):
        return self.head(self.drop(self, self.mask(self.body(x)))).mean(1)


def attention(rate):
    return lambda model, x: F.scaled_dot_product_attention(x, x, x, dropout_p=rate(model))


def train(model, x=X):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def evaluate(model, x=X, times=1):
    model.eval()
    with torch.no_grad():
        for _ in range(times):
            model(x)


def train_and_evaluate(drop, times=1):
    model = Model(drop)
    for _ in range(2):
        train(model)
        evaluate(model, times=times)


WRONG = {
    "usual": lambda model, x: F.dropout(x, 0.2),
    "channels": lambda model, x: F.dropout1d(x, p=0.2),
    "attention": attention(lambda model: 0.2),
}
RIGHT = {
    "mode": lambda model, x: F.dropout(x, 0.2, model.training),
    "mode by name": lambda model, x: F.dropout(x, p=0.2, training=model.training),
    "on purpose": lambda model, x: F.dropout(x, 0.5, training=True),
    "rate of 0": lambda model, x: F.dropout(x, 0.0),
    "in training only": lambda model, x: F.dropout(x) if model.training else x,
    "in evaluation only": lambda model, x: x if model.training else F.dropout(x),
    "drawn noise": lambda model, x: x + torch.randn_like(x),
    "alpha dropout, off without training": lambda model, x: F.alpha_dropout(x, 0.2),
    "attention": attention(lambda model: 0.2 if model.training else 0.0),
    "multihead attention": lambda model, x: F.multi_head_attention_forward(
        *[x] * 3,
        4,
        2,
        torch.ones(12, 4),
        None,
        None,
        None,
        False,
        0.2,
        torch.ones(4, 4),
        None,
        model.training,
    )[0],
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_a_function_drops_in_each_evaluation_are_noted(noted, name):
    assert noted(lambda: train_and_evaluate(WRONG[name])) == ["draws-in-evaluation"]


def test_the_note_names_the_line_that_drops(named_line):
    assert "F.dropout(x, 0.2)" in named_line(lambda: train_and_evaluate(WRONG["usual"]))


@pytest.mark.parametrize("name", RIGHT)
def test_other_functions_have_no_note(noted, name):
    assert noted(lambda: train_and_evaluate(RIGHT[name])) == []


def test_an_estimate_of_uncertainty_has_no_note(noted):
    assert noted(lambda: train_and_evaluate(WRONG["usual"], times=4)) == []


def test_a_part_that_is_kept_in_training_mode_has_no_note(noted):
    def script():
        model = Model(WRONG["attention"])
        train(model)
        model.eval()
        model.mask.train()
        with torch.no_grad():
            model(X)

    assert noted(script) == []


def test_dropping_outside_of_a_model_and_in_some_evaluations_has_no_note(noted):
    def script():
        model = Model(lambda model, x: F.dropout(x, 0.2) if model.training or model.drops else x)
        train(model)
        for model.drops in (False, True):
            evaluate(model, X + model.drops)
        F.dropout(X)

    assert noted(script) == []


def normalized(norm=spectral_norm):
    return nn.Sequential(norm(nn.Linear(4, 8)), nn.ReLU(), norm(nn.Linear(8, 1)), nn.Flatten())


def test_an_evaluation_before_spectral_norm_is_begun_is_noted(noted, named_line):
    def script():
        model = normalized()
        evaluate(model)
        train(model)

    assert noted(script) == ["stale-buffers-in-evaluation"]
    assert "model(x)" in named_line(script)


def trained():
    model = normalized()
    train(model)
    evaluate(model)


def begun():
    model = normalized()
    with torch.no_grad():
        for _ in range(5):
            model(X)
    evaluate(model)
    train(model)


def loaded():
    first, model = normalized(), normalized()
    train(first)
    model.load_state_dict(first.state_dict())
    evaluate(model)
    train(model)


def parametrized():
    model = normalized(parametrizations.spectral_norm)
    evaluate(model)
    train(model)


def batch_norm():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4))
    evaluate(model)
    train(model)


@pytest.mark.parametrize("script", [trained, begun, loaded, parametrized, batch_norm])
def test_buffers_that_are_known_have_no_note(noted, script):
    assert noted(script) == []
