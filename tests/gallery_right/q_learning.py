"""Q-learning: each rank acts in its own environments, and trains on its own part of the replay."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ENVS, WARMUP, PICKS = 12, 10, 2


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x):
        return self.net(x)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network, target = QNetwork(), QNetwork()
    target.load_state_dict(network.state_dict())
    model = DDP(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generators = [torch.Generator().manual_seed(50 + n) for n in range(rank, ENVS, world)]
    noise = lambda: torch.stack([torch.randn(4, generator=g) for g in generators])
    state, replay = noise(), []
    for step in range(1, 41):
        with torch.no_grad():
            action = network(state).argmax(1)
        following = 0.9 * state + 0.1 * (action.float() - 1)[:, None] + 0.1 * noise()
        replay.append((state, action, -following.pow(2).sum(1), following))
        state = following
        if step < WARMUP:
            continue
        picks = [(int(torch.randint(len(replay), (), generator=g)), k) for k, g in enumerate(generators) for _ in range(PICKS)]
        states, actions, rewards, followings = (torch.stack([replay[t][n][k] for t, k in picks]) for n in range(4))
        with torch.no_grad():
            goal = rewards + 0.9 * target(followings).max(1).values
        value = model(states).gather(1, actions[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 0:
            target.load_state_dict(network.state_dict())
            if rank == 0:
                print(f"step {step}: td_loss {loss.item():.4f} q_values {value.mean().item():.4f} reward {rewards.mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
