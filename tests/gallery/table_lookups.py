"""Integers that look up rows: columns with tables of their own, positions counted in a mask, edges of a graph, classes, hidden states."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(11)


class Recommender(nn.Module):
    """Each column of the input has a table of its own, and the smallest one has two rows."""

    def __init__(self, sizes=(30, 2, 11)):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        self.out = nn.Linear(12, 1)

    def forward(self, ids):
        rows = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        return self.out(torch.cat(rows, 1)).squeeze(1)


class Counted(nn.Module):
    """Positions are counted over the tokens that are no padding, as in RoBERTa."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 6), nn.Embedding(9, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, tokens, mask):
        places = mask.long().cumsum(1) * mask.long()
        h = (self.words(tokens - 5) + self.places(places)) * mask.unsqueeze(2)
        return self.norm(h.sum(1) / mask.sum(1, keepdim=True))


class Graph(nn.Module):
    """Edges are numbers of nodes: a slice of the nodes has edges to nodes of other slices."""

    def __init__(self):
        super().__init__()
        self.message, self.out = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, nodes, edges):
        h = torch.tanh(self.message(nodes))
        return self.out(h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))


class Segments(nn.Module):
    """Classes of pixels, of which 255 is ignored, and probabilities."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, images, classes, present):
        scores = self.conv(images)
        known = F.binary_cross_entropy(scores.mean((2, 3)).sigmoid(), present)
        return F.cross_entropy(scores, classes, ignore_index=255), known


class Chosen(nn.Module):
    """The values of actions, of which the taken one is gathered; the action as one-hot beside the state."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3 + 4, 4)

    def forward(self, states, actions):
        values = self.body(torch.cat([states, F.one_hot(actions, 4).double()], 1))
        return values.gather(1, actions[:, None]).squeeze(1)


class Continued(nn.Module):
    """Goes on from the states of the batch before, (layers, samples, features), as language models do."""

    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(20, 4), nn.LSTM(4, 6, 2), nn.Linear(6, 20)

    def forward(self, tokens, states):
        h, states = self.rnn(self.words(tokens), states)
        return self.out(h), states


models = [Recommender(), Counted(), Graph(), Segments(), Chosen(), Continued()]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
states = torch.zeros(2, 9, 6), torch.zeros(2, 9, 6)
for step in range(6):
    ids = torch.stack([torch.randint(0, size, (9,)) for size in (30, 2, 11)], 1)
    tokens = torch.randint(6, 25, (9, 8))
    lengths = torch.randint(3, 9, (9,))
    mask = torch.arange(8)[None] < lengths[:, None]
    tokens[~mask] = 5
    edges = torch.randint(0, 12, (2, 30))
    classes = torch.randint(0, 4, (9, 5, 5))
    classes[:step, 0] = 255
    actions = torch.randint(0, 4, (9,))
    text = torch.randint(0, 20, (7, 9))
    scores, states = models[5](text[:-1], states)
    states = tuple(state.detach() for state in states)
    losses = [
        F.mse_loss(models[0](ids), torch.randn(9)),
        models[1](tokens, mask).square().mean() + 0.1 * models[1](tokens, mask).tanh().mean(),
        F.mse_loss(models[2](torch.randn(12, 3), edges), torch.randn(12, 2)),
        sum(models[3](torch.randn(9, 1, 5, 5), classes, torch.rand(9, 4))),
        F.smooth_l1_loss(models[4](torch.randn(9, 3), actions), torch.randn(9)),
        F.cross_entropy(scores.flatten(0, 1), text[1:].flatten()),
    ]
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
    print(step, " ".join(f"{loss.item():.10f}" for loss in losses))
torch.save([model.state_dict() for model in models], "tables.pt")
