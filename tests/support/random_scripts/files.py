"""Lists the ways in which scripts write files and read them back."""

from dataclasses import dataclass, fields
from textwrap import dedent


@dataclass(frozen=True)
class Files:
    """Lines of a training loop that write and read files.

    Attributes:
        name: the name for the script's first line.
        first: lines before the loop.
        by_step: lines after each step.
        by_epoch: lines after each epoch.
        last: lines after the loop.
    """

    name: str = ""
    first: str = ""
    by_step: str = ""
    by_epoch: str = ""
    last: str = ""

    def __post_init__(self):
        for field in fields(self):
            object.__setattr__(self, field.name, dedent(getattr(self, field.name)).strip("\n"))


FILES = (
    Files(),
    Files(),
    Files(
        "best checkpoint",
        by_epoch="""
        if total < best:
            torch.save(model.state_dict(), "best.pt")
        """,
        last="""
        model.load_state_dict(torch.load("best.pt"))
        print(f"best {evaluate(model):.10f}")
        """,
    ),
    Files(
        "best weights in memory",
        first="saved = None",
        by_epoch="""
        if total < best:
            saved = copy.deepcopy(model.state_dict())
        """,
        last="""
        model.load_state_dict(saved)
        print(f"best {evaluate(model):.10f}")
        """,
    ),
    Files(
        "log appended",
        by_step="""
        with open("log.txt", "a") as log:
            log.write(f"{epoch} {step} {loss.item():.10f}\\n")
        """,
        last="""
        with open("log.txt") as log:
            print("lines", len(log.readlines()))
        """,
    ),
    Files(
        "log kept open",
        first='log = open("log.csv", "w")',
        by_epoch="""
        log.write(f"{epoch},{total:.10f},{score:.10f}\\n")
        log.flush()
        """,
        last="log.close()",
    ),
    Files(
        "history",
        first="history = []",
        by_step="history.append(loss.item())",
        last="""
        np.save("history.npy", np.array(history))
        with open("history.json", "w") as file:
            json.dump([round(one, 9) for one in history], file)
        print("read", np.load("history.npy").sum().round(10))
        """,
    ),
    Files(
        "resumed in each epoch",
        by_epoch="""
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
        loaded = torch.load("last.pt")
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        """,
    ),
)
