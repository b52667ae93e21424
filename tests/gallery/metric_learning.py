import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
np.random.seed(12)
torch.manual_seed(12)


def make_people(n_people, per_person, dim=20):
    """Each person is a direction, each photo of them a noisy copy with another brightness."""
    faces = np.random.randn(n_people, dim)
    who = np.repeat(np.arange(n_people), per_person)
    photos = faces[who] + 1.0 * np.random.randn(len(who), dim)
    photos *= np.random.uniform(0.5, 2.0, size=(len(who), 1))
    return torch.from_numpy(photos), torch.from_numpy(who)


class EmbeddingNet(nn.Module):
    def __init__(self, dim=20, out=8):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(dim, 40), nn.PReLU(), nn.Linear(40, 40), nn.PReLU(), nn.Linear(40, out))

    def forward(self, x):
        return F.normalize(self.fc(x), p=2, dim=1)


def pairwise_distances(embeddings, eps=1e-8):
    dot = embeddings @ embeddings.t()
    square = dot.diag()
    distances = (square[None, :] - 2.0 * dot + square[:, None]).clamp(min=0.0)
    return torch.sqrt(distances + eps)


def contrastive_loss(embeddings, labels, margin=1.0):
    distances = pairwise_distances(embeddings)
    same = labels[None, :] == labels[:, None]
    upper = torch.triu(torch.ones_like(same), diagonal=1)
    positive = distances[same & upper].pow(2)
    negative = F.relu(margin - distances[~same & upper]).pow(2)
    return positive.mean() + negative.mean()


def batch_hard_triplet_loss(embeddings, labels, margin=0.3):
    distances = pairwise_distances(embeddings)
    same = labels[None, :] == labels[:, None]
    hardest_positive = (distances * same).max(dim=1).values
    hardest_negative = (distances + 10.0 * same).min(dim=1).values
    return F.relu(hardest_positive - hardest_negative + margin).mean()


def recall_at(model, photos, who, k):
    model.eval()
    with torch.no_grad():
        distances = pairwise_distances(model(photos))
    distances.fill_diagonal_(float("inf"))
    nearest = distances.topk(k, largest=False).indices
    return (who[nearest] == who[:, None]).any(dim=1).double().mean().item()


if __name__ == "__main__":
    photos, who = make_people(12, 23)
    order = np.random.permutation(len(photos))
    train_idx, test_idx = order[:203], order[203:]
    train_loader = DataLoader(TensorDataset(photos[train_idx], who[train_idx]), batch_size=45, shuffle=True)
    model = EmbeddingNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)

    history = []
    for epoch in range(8):
        loss_of = contrastive_loss if epoch < 4 else batch_hard_triplet_loss
        model.train()
        losses = []
        for x, y in train_loader:
            embeddings = model(x)
            loss = loss_of(embeddings, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        r1 = recall_at(model, photos[test_idx], who[test_idx], 1)
        r5 = recall_at(model, photos[test_idx], who[test_idx], 5)
        print(f"{loss_of.__name__:24s} epoch {epoch} loss {np.mean(losses):.10f} "
              f"recall@1 {r1:.10f} recall@5 {r5:.10f}")
        history.append([np.mean(losses), r1, r5])

    with torch.no_grad():
        np.save("embeddings.npy", model(photos).numpy())
    np.save("history.npy", np.array(history))
