"""Generates the training loop of a script: optimizer, schedule, evaluation, and changes between epochs."""

from dataclasses import dataclass
from random import Random
from textwrap import indent

from support.random_scripts.data import Data
from support.random_scripts.files import FILES
from support.random_scripts.losses import source
from support.random_scripts.models import PER_STEP, Model
from support.random_scripts.parts import Part, chance, choose, lines_of

OPTIMIZERS = (
    Part("SGD", "torch.optim.SGD(model.parameters(), lr=0.1)", weight=3),
    Part(
        "SGD with momentum",
        "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)",
        weight=2,
    ),
    Part("Adam", "torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)", weight=3),
    Part("AdamW", "torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)", weight=3),
    Part("RMSprop", "torch.optim.RMSprop(model.parameters(), lr=0.01, eps=1e-4)"),
    Part("Adagrad", "torch.optim.Adagrad(model.parameters(), lr=0.05, eps=1e-4)"),
    Part("LBFGS", "torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)", weight=0.7),
)
"""Optimizers that divide by gradients have a large `eps`, so that they do not amplify rounding at zero."""

SCHEDULES = {
    "": ("", "", ""),
    "steps of epochs": ("torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)", "", "scheduler.step()"),
    "cosine by steps": ("torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)", "scheduler.step()", ""),
    "warm-up": (
        "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 4))",
        "scheduler.step()",
        "",
    ),
    "plateau": (
        "torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)",
        "",
        "scheduler.step(total)",
    ),
}
"""By name: the scheduler, the line after each step, and the line after each epoch."""

CLIPS = (
    "",
    "",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
    'norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nprint(f"norm {norm.item():.10f}")',
    "torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)",
)

PENALTIES = (
    ("", "", 8),
    (
        "absolute weights",
        "loss = loss + 1e-3 * sum((p.square() + 1e-4).sqrt().sum() for p in model.parameters())",
        1,
    ),
    ("confidence", "loss = loss + 0.1 * out.pow(2).mean()", 1),
    ("mean of the outputs", "loss = loss + 0.1 * out.mean(0).pow(2).sum()", 1),
)

FREEZES = (
    "for p in list(model.parameters())[:-2][:2]:\n    p.requires_grad_(epoch != 0)",
    "for p in list(model.parameters())[:-2][:2]:\n    p.requires_grad_(epoch != 1)",
    "for p in list(model.parameters())[:-2]:\n    p.requires_grad_(epoch > 0)",
)

MODES = (
    "for one in model.modules():\n    if isinstance(one, nn.BatchNorm1d):\n        one.eval()",
    "for one in model.modules():\n    if isinstance(one, nn.Dropout) and epoch == 1:\n        one.eval()",
    "if epoch == 1:\n    list(model.children())[len(list(model.children())) // 2].eval()",
)


@dataclass(frozen=True)
class Loop:
    """The name and the source of a loop."""

    name: str
    source: str


def make_loop(rng: Random, data: Data, model: Model, loss, features):
    """Return the source of a training loop with features."""
    optimizer = choose(rng, OPTIMIZERS)
    is_search = optimizer.name == "LBFGS"
    features = [feature for feature in features if _is_possible(feature, model, is_search=is_search)]
    schedule = rng.choice(("", "", *SCHEDULES)) if not is_search else ""
    made, by_step, by_epoch = SCHEDULES[schedule]
    twin = rng.choice(("", "", "", "", "twice", "teacher", "average")) if not is_search else ""
    is_accumulated = not is_search and chance(rng, 0.12)
    files = rng.choice(FILES)
    evaluation = _evaluation(rng, data, model, loss)
    penalty = rng.choices(PENALTIES, [one[2] for one in PENALTIES])[0]
    if "out" not in model.returned and "out" in penalty[1]:
        penalty = PENALTIES[0]
    stop = "" if not chance(rng, 0.12) else 'if total > best + 0.5:\n    print("stopped")\n    break'
    changes, changed = _changes(rng, model)
    compute = _compute(data, model, loss, penalty[1], twin, features)
    step = _searched(compute) if is_search else _stepped(rng, compute, accumulated=is_accumulated)
    if twin in ("teacher", "average"):
        after = (
            "with torch.no_grad():\n"
            "    for slow, fast in zip(copied.parameters(), model.parameters()):\n"
            "        slow.lerp_(fast, 0.2)"
        )
    else:
        after = ""
    body = lines_of(
        data.unpacked(),
        *(f"given_{feature.place} = {feature.given}" for feature in features if feature.given),
        *(feature.before for feature in features),
        step,
        by_step,
        after,
        *(feature.after for feature in features),
        "total += loss.item()",
        'print(f"epoch {epoch} step {step} loss {loss.item():.10f}")',
        files.by_step,
    )
    epoch = lines_of(
        changes,
        "total = 0.0",
        "step = 0",
        data.loop(),
        indent(lines_of(body, "step += 1"), "    "),
        "flush(step)" if is_accumulated else "",
        by_epoch,
        "score = evaluate(model)",
        'print(f"epoch {epoch} total {total:.10f} score {score:.10f}")',
        files.by_epoch,
        stop,
        "best = min(best, total)",
    )
    copied = twin in ("teacher", "average")
    text = lines_of(
        "\n\nmodel = Net()",
        "copied = copy.deepcopy(model)" + ("\ncopied.requires_grad_(False)" if twin == "teacher" else "")
        if copied
        else "",
        f"optimizer = {optimizer.init}",
        *(feature.first for feature in features),
        f"scheduler = {made}" if made else "",
        _FLUSH if is_accumulated else "",
        evaluation,
        "\n\n" + files.first if files.first else "\n",
        *(f"{name} = None" for name in model.given),
        "best = math.inf",
        f"for epoch in range({rng.choice((2, 2, 3))}):",
        indent(epoch, "    "),
        'print(f"copied {evaluate(copied):.10f}")' if copied else "",
        files.last,
        *(feature.last for feature in features),
        'print(f"weights {sum(p.double().abs().sum().item() for p in model.state_dict().values()):.10f}")',
        'print(f"squares {sum(p.double().pow(2).sum().item() for p in model.parameters()):.10f}")',
    )
    names = (
        optimizer.name,
        schedule,
        penalty[0],
        twin,
        *changed,
        *(feature.name for feature in features),
        files.name,
        "accumulated" if is_accumulated else "",
    )
    return Loop(", ".join(name for name in names if name), text)


def _is_possible(feature, model, *, is_search):
    """Return whether a loop has what a feature needs; LBFGS computes the outputs in its closure."""
    if not feature.needs:
        return True
    has = "out" in model.returned if feature.needs == "out" else model.style in ("position", "name")
    return has and not is_search


def _compute(data, model, loss, penalty, twin, features):
    """Return the lines that compute `loss` for a batch."""
    extra = {
        "returned": "loss = loss + 0.1 * aux.mean()",
        "attribute": "loss = loss + 0.1 * model.aux.mean()",
    }
    outside = "" if model.has_loss else source(loss, data.layout)
    called = model.called(data)
    for feature in features:
        if feature.context:
            called = f"with {feature.context}:\n{indent(called, '    ')}"
    results = [feature.result for feature in features]
    lines = [called, *results, outside, extra.get(model.extra, ""), penalty]
    if twin == "twice" and "out" in model.returned:
        again = model.called(data).replace("out", "again", 1) if model.form in ("alone", "tuple") else ""
        if again and "loss" not in model.returned and "aux" not in model.returned:
            lines += [again, "loss = loss + 0.2 * (out - again).pow(2).mean()"]
    if twin == "teacher" and not model.has_loss:
        lines += [
            "kept = out",
            "with torch.no_grad():\n" + indent(model.called(data, model="copied"), "    "),
            "out, taught = kept, out",
            "loss = loss + 0.2 * F.mse_loss(out, taught)",
        ]
    return lines_of(*lines, *(feature.between for feature in features))


_FLUSH = """

def flush(steps):
    if steps % 2:
        optimizer.step()
        optimizer.zero_grad()
"""


def _stepped(rng, compute, *, accumulated):
    clip = rng.choice(CLIPS)
    if accumulated:
        update = lines_of(clip, "optimizer.step()", "optimizer.zero_grad()")
        return lines_of(compute, "(loss / 2).backward()", "if step % 2:", indent(update, "    "))
    return lines_of(
        *(("optimizer.zero_grad()", compute) if chance(rng, 0.5) else (compute, "optimizer.zero_grad()")),
        "loss.backward()",
        clip,
        "optimizer.step()",
    )


def _searched(compute):
    body = lines_of("optimizer.zero_grad()", compute, "loss.backward()", "return loss")
    return lines_of("def closure():", indent(body, "    "), "loss = optimizer.step(closure)")


def _evaluation(rng, data, model, loss):
    """Return the source of the function that scores a model on the evaluation data."""
    context = rng.choice(("torch.no_grad()", "torch.no_grad()", "torch.inference_mode()"))
    sizes = [size for size in (3, data.size, data.size + 1, 8, 64) if data.tested % size != 1]
    size = rng.choice(sizes)  # batch norm in training mode needs two samples
    with_loss = model.has_loss and (not model.can_leave_out or chance(rng, 0.5))
    score = _score(data, loss) if not with_loss else "score += loss.item()"
    mode = "model.eval()" if chance(rng, 0.85) else ""
    body = lines_of(data.unpacked(), model.called(data, with_loss=with_loss), score)
    return lines_of(
        "\n\ndef evaluate(model):",
        indent(mode, "    ") if mode else "",
        "    score = 0.0",
        f"    with {context}:",
        f"        for batch in sliced(TESTED, {size}, first=N):",
        indent(body, "            "),
        "    model.train()" if mode else "",
        "    return score",
    )


def _score(data, loss):
    if data.target in PER_STEP:
        return "score += (out.argmax(-1) == y).double().sum().item() + out.mean().item()"
    if data.target == "class":
        return "score += (out.argmax(-1) == y).double().sum().item() + out.mean().item()"
    return "score += (out - y).abs().sum().item()"


def _changes(rng, model):
    """Return the lines at the start of each epoch, and the names of the changes that they make."""
    lines, names = [], []
    if chance(rng, 0.4):
        lines.append("model.train()")
    if "self.epoch" in model.definition:
        lines.append("model.epoch = epoch")
    if "self.factor" in model.definition:
        lines.append("model.factor = 0.5 * epoch")
    if chance(rng, 0.1):
        lines.append(rng.choice(FREEZES))
        names.append("freezes")
    if chance(rng, 0.12):
        lines.append(
            "for one in model.modules():\n    if isinstance(one, nn.Dropout):\n        one.p = 0.3 * epoch"
        )
        names.append("raises dropout")
    if chance(rng, 0.12):
        lines += ["model.train()", rng.choice(MODES)]
        names.append("modes")
    return lines_of(*lines), names
