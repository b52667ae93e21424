"""Samples in lists, as of a detector: scenes of different sizes, and losses that the model averages."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Scenes(Dataset):
    """Scenes with one to four objects."""

    def __init__(self, count):
        drawn = torch.Generator().manual_seed(1)
        self.points = [torch.randn(1 + i % 4, 5, generator=drawn) for i in range(count)]
        self.kinds = [torch.randint(0, 3, (len(one),), generator=drawn) for one in self.points]

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], {"kinds": self.kinds[index], "count": len(self.points[index])}


def collate(batch):
    return tuple(zip(*batch, strict=True))


class Detector(nn.Module):
    """Returns a dict of losses in training, and the scores of each scene in evaluation."""

    def __init__(self):
        super().__init__()
        self.body, self.kind, self.number = nn.Linear(5, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, scenes, targets=None):
        features = [torch.relu(self.body(scene)) for scene in scenes]
        scores = [self.kind(one) for one in features]
        numbers = torch.cat([self.number(one.sum(0, keepdim=True)) for one in features])[:, 0]
        if targets is None:
            return torch.stack([one.mean(0) for one in scores]), numbers
        kinds = [F.cross_entropy(one, target["kinds"]) for one, target in zip(scores, targets, strict=True)]
        counts = torch.tensor([target["count"] for target in targets], dtype=torch.float64)
        return {"kinds": sum(kinds) / len(kinds), "number": F.mse_loss(numbers, counts)}


train = DataLoader(Scenes(46), batch_size=8, shuffle=True, collate_fn=collate)
test = DataLoader(Scenes(20), batch_size=8, collate_fn=collate)
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    model.train()
    for scenes, targets in train:
        losses = model(scenes, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        outputs = [model(scenes) for scenes, _ in test]
    error = 0.0
    for (_, numbers), (_, targets) in zip(outputs, test, strict=True):
        error += (numbers - torch.tensor([one["count"] for one in targets])).abs().sum().item()
    print(epoch, f"{loss.item():.10f} {error:.8f} {outputs[0][0].sum().item():.8f}")
torch.save(model.state_dict(), "detector.pt")
