"""PPO with DistributedDataParallel: each rank steps its own part of the environments."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Normal
from torch.nn.parallel import DistributedDataParallel as DDP

ENVS, STEPS, UPDATES, EPOCHS, MINIBATCHES = 12, 16, 4, 2, 2
GAMMA, CLIP, ENTROPY, VALUE = 0.95, 0.2, 0.01, 0.5


class PointEnvs:
    """Points on a plane that are pushed to the origin."""

    def __init__(self, numbers):
        self.generators = [torch.Generator().manual_seed(100 + n) for n in numbers]
        self.state = self.draw(4)

    def draw(self, size):
        return torch.stack([torch.randn(size, generator=g) for g in self.generators])

    def step(self, action):
        position, speed = self.state[:, :2], self.state[:, 2:]
        speed = 0.9 * speed + 0.1 * action
        position = position + 0.1 * speed
        self.state = torch.cat([position, speed], 1)
        return self.state, -position.pow(2).sum(1)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.mean, self.value = nn.Linear(32, 2), nn.Linear(32, 1)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        hidden = self.body(x)
        return self.mean(hidden), self.log_std.exp(), self.value(hidden).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    agent = DDP(ActorCritic())
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    envs = PointEnvs(range(rank, ENVS, world))
    state = envs.state
    for update in range(1, UPDATES + 1):
        states, actions, logprobs, rewards, values = [], [], [], [], []
        for _ in range(STEPS):
            with torch.no_grad():
                mean, std, value = agent(state)
                action = mean + std * envs.draw(2)
                logprob = Normal(mean, std).log_prob(action).sum(1)
            states.append(state), actions.append(action), logprobs.append(logprob), values.append(value)
            state, reward = envs.step(action)
            rewards.append(reward)
        with torch.no_grad():
            following = agent(state)[2]
        returns = []
        for reward in reversed(rewards):
            following = reward + GAMMA * following
            returns.insert(0, following)
        b_states, b_actions, b_logprobs, b_returns, b_values = map(
            torch.stack, (states, actions, logprobs, returns, values)
        )
        advantages = b_returns - b_values
        for _ in range(EPOCHS):
            for part in torch.arange(STEPS).chunk(MINIBATCHES):
                mean, std, value = agent(b_states[part].flatten(0, 1))
                policy = Normal(mean, std)
                ratio = (policy.log_prob(b_actions[part].flatten(0, 1)).sum(1) - b_logprobs[part].flatten()).exp()
                advantage = advantages[part].flatten()
                pg_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                v_loss = 0.5 * (value - b_returns[part].flatten()).pow(2).mean()
                entropy = policy.entropy().sum(1).mean()
                loss = pg_loss - ENTROPY * entropy + VALUE * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        if rank == 0:
            print(f"update {update}: policy_loss {pg_loss.item():.4f} value_loss {v_loss.item():.4f} "
                  f"entropy {entropy.item():.4f} return {b_returns.mean().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
