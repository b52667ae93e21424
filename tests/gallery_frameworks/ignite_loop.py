"""A trainer of Ignite."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x = torch.randn(96, 10)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
trainer = create_supervised_trainer(
    model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.functional.cross_entropy
)
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})


@trainer.on(Events.ITERATION_COMPLETED)
def show(engine):
    print(f"step {engine.state.iteration} loss {engine.state.output:.6f}")


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(DataLoader(TensorDataset(x[64:], y[64:]), 8))
    print("accuracy", evaluator.state.metrics["accuracy"])


trainer.run(DataLoader(TensorDataset(x[:64], y[:64]), 8, shuffle=True), max_epochs=2)
