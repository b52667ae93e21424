"""A checkpoint has only the optimizer's parameters: a resumed training has new frozen layers."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def made():
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    return model, optimizer


def save(model, optimizer, path):
    kept = {name for name, p in model.named_parameters() if p.requires_grad or not WRONG}
    weights = {name: tensor for name, tensor in model.state_dict().items() if name in kept}
    torch.save({"model": weights, "optimizer": optimizer.state_dict()}, path)


def main():
    torch.manual_seed(0)
    features = torch.randn(256, 12)
    labels = (features @ torch.randn(12, 4)).argmax(1)
    loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True)
    model, optimizer = made()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        for epoch in range(4):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}")
            if epoch == 1:  # the job ends here, and another one resumes it
                save(model, optimizer, path)
                model, optimizer = made()
                state = torch.load(path)
                model.load_state_dict(state["model"], strict=False)
                optimizer.load_state_dict(state["optimizer"])


if __name__ == "__main__":
    main()
