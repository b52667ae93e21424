"""Generates loops with two models or two views of each batch: adversarial, distilled, contrastive."""

from textwrap import dedent


def _gan(rng):
    size, rest = rng.choice((4, 6)), rng.choice((0, 3))
    middle = rng.choice(("nn.LeakyReLU(0.2)", "nn.BatchNorm1d(8)", "nn.LayerNorm(8)", "nn.Dropout(0.2)"))
    loss = rng.choice(("F.binary_cross_entropy_with_logits", "F.mse_loss"))
    held = rng.choice((".detach()", ""))
    return "two adversaries", dedent(
        f"""
        REAL = torch.randn({size * 3 + rest}, 4) * 0.5 + 1
        generator = nn.Sequential(nn.Linear(3, 8), {middle}, nn.Tanh(), nn.Linear(8, 4))
        critic = nn.Sequential(nn.Linear(4, 8), {middle}, nn.Tanh(), nn.Linear(8, 1))
        first = torch.optim.Adam(generator.parameters(), lr=0.01, eps=1e-4)
        second = torch.optim.Adam(critic.parameters(), lr=0.01, eps=1e-4)
        for epoch in range(2):
            for real in REAL[torch.randperm(len(REAL))].split({size}):
                fake = generator(torch.randn(len(real), 3))
                second.zero_grad()
                loss = {loss}(critic(real), torch.ones(len(real), 1))
                loss = loss + {loss}(critic(fake{held}), torch.zeros(len(real), 1))
                loss.backward(retain_graph=True)
                second.step()
                first.zero_grad()
                made = {loss}(critic(generator(torch.randn(len(real), 3))), torch.ones(len(real), 1))
                made.backward()
                first.step()
                print(f"{{loss.item():.10f}} {{made.item():.10f}}")
        generator.eval()
        with torch.no_grad():
            np.save("made.npy", generator(torch.ones(5, 3)).numpy())
        print(f"{{sum(p.sum().item() for p in [*generator.parameters(), *critic.parameters()]):.10f}}")
        """
    )


def _views(rng):
    size = rng.choice((4, 6, 7))
    middle = rng.choice(("nn.BatchNorm1d(8)", "nn.LayerNorm(8)", "nn.Dropout(0.2)", "nn.ReLU()"))
    joined = rng.choice(("one", "two"))
    calls = {
        "one": "one, two = model(torch.cat([x + noise, x - noise])).chunk(2)",
        "two": "one, two = model(x + noise), model(x - noise)",
    }[joined]
    return "two views", dedent(
        f"""
        X = torch.randn({size * 3 + 3}, 5)
        model = nn.Sequential(nn.Linear(5, 8), {middle}, nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            for x in X.split({size}):
                noise = 0.1 * torch.randn_like(x)
                {calls}
                one, two = F.normalize(one, dim=-1), F.normalize(two, dim=-1)
                loss = F.cross_entropy(one @ two.t() / 0.5, torch.arange(len(x)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"{{loss.item():.10f}}")
        torch.save(model, "model.pt")
        print(f"{{sum(p.sum().item() for p in model.parameters()):.10f}}")
        """
    )


def _distilled(rng):
    size = rng.choice((4, 6, 7))
    late = rng.choice(("torch.no_grad()", "torch.inference_mode()"))
    momentum = rng.choice((0.9, 0.5))
    return "a student and its average", dedent(
        f"""
        X = torch.randn({size * 3 + 4}, 5)
        student = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        teacher, predictor = copy.deepcopy(student).requires_grad_(False), nn.Linear(4, 4)
        optimizer = torch.optim.AdamW([*student.parameters(), *predictor.parameters()], lr=0.01, eps=1e-4)
        for epoch in range(2):
            for x in X.split({size}):
                with {late}:
                    aim = teacher(x + 0.1 * torch.randn_like(x))
                found = predictor(student(x + 0.1 * torch.randn_like(x)))
                loss = 2 - 2 * F.cosine_similarity(found, aim.clone(), dim=-1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for slow, fast in zip(teacher.parameters(), student.parameters()):
                        slow.mul_({momentum}).add_({1 - momentum} * fast)
                print(f"{{loss.item():.10f}}")
        print(f"{{sum(p.sum().item() for p in teacher.state_dict().values()):.10f}}")
        print(f"{{sum(p.sum().item() for p in student.parameters()):.10f}}")
        """
    )


PAIRS = (_gan, _views, _distilled)
