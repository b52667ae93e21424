import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

if not torch.cuda.is_available():
    sys.exit("This code needs a GPU.")
torch.set_default_dtype(torch.float64)
torch.manual_seed(1111)
torch.cuda.manual_seed_all(1111)
torch.backends.cudnn.deterministic = True
print("gpus:", torch.cuda.device_count(), "current:", torch.cuda.current_device())

# Spirals with three arms
g = torch.Generator(device="cuda").manual_seed(7)
t = torch.rand(203, generator=g, device="cuda:0")
arm = torch.randint(0, 3, (203,), generator=g, device="cuda")
angle = 4 * t + arm.double() * 2.0944
points = torch.stack([t * angle.sin(), t * angle.cos()], dim=1)
points += torch.cuda.DoubleTensor(203, 2).normal_(0, 0.03, generator=g)
train_set = TensorDataset(points[:150].cpu(), arm[:150].cpu())
test_points, test_arm = points[150:], arm[150:]
train_loader = DataLoader(train_set, batch_size=32, shuffle=True, pin_memory=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.bn = nn.BatchNorm1d(32)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        noise = torch.randn(x.shape, device="cuda") * 0.01
        x = F.relu(self.bn(self.fc2(x + noise if self.training else x)))
        mask = torch.ones(x.size(0), 1).cuda()
        return self.fc3(F.dropout(x * mask, 0.1, self.training))


model = nn.DataParallel(Net().cuda(), device_ids=[0])
weight = torch.tensor([1.0, 1.5, 0.8]).cuda(non_blocking=True)
criterion = nn.CrossEntropyLoss(weight=weight).to("cuda:0")
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
scaler = GradScaler()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()

for epoch in range(6):
    model.train()
    running = torch.zeros(1, device=torch.device("cuda", 0))
    for x, y in train_loader:
        x, y = x.cuda(non_blocking=True), y.to(0, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        running += loss.detach() * len(x)
    torch.cuda.synchronize()
    model.eval()
    with torch.no_grad(), torch.autocast("cuda"):
        scores = model(test_points)
    accuracy = (scores.argmax(1) == test_arm).type(torch.cuda.DoubleTensor).mean()
    print("epoch %d loss %.10f test loss %.10f accuracy %.10f"
          % (epoch, running.item() / 150, criterion(scores, test_arm).item(), accuracy.item()))
    torch.save({"net": model.state_dict(), "rng": torch.cuda.get_rng_state()}, "cuda.pth")
    torch.cuda.empty_cache()

end.record()
torch.cuda.synchronize()
print("training took %.3f ms, %.1f MB" % (start.elapsed_time(end), torch.cuda.max_memory_allocated() / 2 ** 20))
best = torch.load("cuda.pth", map_location="cuda:0")
model.load_state_dict(best["net"])
with torch.inference_mode():
    probabilities = model.eval()(test_points.cuda()).softmax(1)
np.save("probabilities.npy", probabilities.cpu().numpy())
print("entropy %.10f" % -(probabilities * probabilities.log()).sum(1).mean().item())
