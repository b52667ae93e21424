"""The tables and lists of the documentation equal those of the code."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

import samestep
from samestep import errors
from samestep.base.machine.description import Machine
from samestep.base.options import flag
from samestep.base.place import Place
from samestep.base.record import provenance
from samestep.base.step_phases import ALL as STEP_PHASES
from samestep.bench.figures import figures
from samestep.cli.main import PACKAGES, VERBS
from samestep.cli.scale import Target
from samestep.launch.local.local_backend import Round, worker_variables
from samestep.launchers.registry import LAUNCHERS
from samestep.observe.instants import ClockedStep, ContentionEstimator, HostInstants
from samestep.observe.step_reader import LoopClock
from samestep.parallel.gradients.replicate import SYNCHRONIZERS
from samestep.ranks.world.protocol import SoloWorld
from samestep.scaling.analysis.runs import MACHINE
from samestep.scaling.analysis.study import PHASES, Loss, Point, Rank, Study, Verdict, Worth
from samestep.training.output.run_folder import Result
from samestep.training.output.step_journal import Journal
from samestep.training.recipes.registry import FAST, RECIPES
from samestep.training.recipes.request import RECIPE_KEYS
from samestep.training.settings import SMALL_SHARE, Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def section(page: str, heading: str) -> str:
    """Return the text of `page` below `heading`, up to the next heading of any level."""
    text = (DOCS / page).read_text()
    assert f"\n{heading}\n" in text
    return re.split(r"\n#+ ", text.split(f"\n{heading}\n", 1)[1], maxsplit=1)[0]


def cells(text: str) -> list[list[str]]:
    """Return the rows of the first table in `text`, its head left out."""
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def named(text: str) -> list[str]:
    """Return the names in backticks in the first column of the first table in `text`."""
    return [row[0].strip("`") for row in cells(text)]


def test_every_verb_is_in_the_readme():
    readme = (ROOT / "README.md").read_text()

    for verb in (*VERBS, *PACKAGES):
        assert f"`samestep {verb}" in readme


def test_every_verb_in_the_readme_exists():
    verbs = re.findall(r"(?:`|\$ |    )samestep ([a-z]+)", (ROOT / "README.md").read_text())

    assert set(verbs) == {*VERBS, *PACKAGES}


@pytest.mark.parametrize(
    ("page", "folder"),
    [
        ("scaling", "scaling.analysis"),
        ("scaling", "scaling.sweep"),
        ("observe", "observe"),
        ("ranks", "ranks.hang"),
        ("hooks", "hooks"),
    ],
)
def test_every_module_of_a_completely_listed_folder_is_in_the_reference(page, folder):
    text = (DOCS / f"reference/{page}.md").read_text()
    listed = re.findall(rf"^::: samestep\.{re.escape(folder)}\.(\w+)$", text, re.MULTILINE)
    modules = [path.stem for path in (ROOT / "src" / "samestep").joinpath(*folder.split(".")).glob("*.py")]
    assert sorted([*listed, "__init__"]) == sorted(modules)


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "reference" / "index.md").read_text()

    assert set(re.findall(r"^::: samestep\.(\w+)$", page, re.MULTILINE)) == set(samestep.__all__)


def test_every_field_of_the_metrics_is_described_and_no_other():
    clock = LoopClock(HostInstants(iter(range(100)).__next__))
    journal = Journal(SoloWorld(), clock)
    clock.start()
    clock.mark("data")
    clock.step_done()
    journal.record(epoch=1, count=4, lr=0.1, loss=torch.tensor(1.0))
    window = journal.end_window()
    (row,) = window.rows

    assert named(section("guide/training.md", "### metrics.jsonl")) == list(row)
    ranks = re.findall(r"^\| (`.*?`) \|", section("guide/training.md", "### ranks.jsonl"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(ranks)) == list(window.ranks[0])


def test_every_phase_and_field_of_a_clocked_step_is_described_and_no_other():
    step = ClockedStep(0, ["other", 0.0, "other", 1.0], 8, evaluated=True)
    fields = " ".join(row[0] for row in cells(section("guide/watching.md", "### Its files")))

    assert named(section("guide/watching.md", "## The step clock")) == list(STEP_PHASES)
    assert re.findall(r"`(\w+)`", fields) == list(step.line(HostInstants(lambda: 0.0), ContentionEstimator()))


def test_every_field_of_the_result_is_described_and_no_other():
    fields = [field.name for field in dataclasses.fields(Result)]

    assert named(section("guide/training.md", "### result.json")) == [*fields, "provenance"]


def test_the_provenance_of_a_result_is_described():
    row = cells(section("guide/training.md", "### result.json"))[-1][-1]
    machine = [field.name for field in dataclasses.fields(Machine)]

    assert sorted(re.findall(r"`(\w+)`", row)) == sorted([*provenance(), *machine])


def test_every_key_of_the_configuration_is_described():
    keys = re.findall(r"`(\w+)`", section("guide/training.md", "### config.toml"))

    assert keys == list(RECIPE_KEYS)


def recipes_table():
    """Return the lines of the table of recipes: a row for each setting in which they differ."""
    recipes = [book[name] for name in RECIPES for book in (RECIPES, FAST) if name in book]
    rows = {"data": [r.data for r in recipes], "`--model`": [r.model for r in recipes]}
    for one in dataclasses.fields(Settings):
        values = [getattr(recipe.settings, one.name) for recipe in recipes]
        if len(set(values)) > 1:
            rows[f"`{flag(one.name)}`"] = [str(v).lower() if isinstance(v, bool) else v for v in values]
    return [f"| {name} | " + " | ".join(str(value) for value in row) + " |" for name, row in rows.items()]


def test_the_settings_of_the_recipes_are_described():
    text = section("guide/training.md", "## Recipes")
    books = {"": RECIPES, " --fast": FAST}
    names = [f"{name}{mark}" for name in RECIPES for mark, book in books.items() if name in book]

    assert "\n".join(recipes_table()) in text
    assert f"| | {' | '.join(names)} |" in text


def test_every_field_of_a_measured_collective_is_described_and_no_other():
    row = figures("broadcast", "tree", nbytes=8, ranks=2, times=[1.0])

    assert named(section("guide/bench.md", "## As JSON")) == list(row.as_dict())


def field_names(kind):
    return [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(
    ("heading", "kind"),
    [("## study.json", Study), ("### points", Point), ("### verdict", Verdict)],
)
def test_every_field_of_a_study_is_described_and_no_other(heading, kind):
    assert named(section("reference/scaling.md", heading)) == field_names(kind)


def test_every_field_of_the_machine_of_a_study_is_described():
    assert named(section("reference/scaling.md", "### machine")) == list(MACHINE)


@pytest.mark.parametrize(
    ("heading", "name", "fields"),
    [
        ("### points", "step_s", PHASES),
        ("### points", "ranks", field_names(Rank)),
        ("### points", "losses", field_names(Loss)),
        ("### verdict", "worth", field_names(Worth)),
    ],
)
def test_the_parts_of_a_field_of_a_study_are_described(heading, name, fields):
    (row,) = (row for row in cells(section("reference/scaling.md", heading)) if row[0] == f"`{name}`")

    assert sorted(re.findall(r"`(\w+)`", row[2])) == sorted(fields)


def test_the_flags_of_scripts_that_a_study_compares_are_listed():
    rows = cells(section("guide/scaling.md", "## Variants"))
    (listed,) = (re.findall(r"`([\w-]+)`", row[0]) for row in rows if row[1] == "scripts")

    script = Target(name="train.py", kind="script", arguments=(), mode="native")
    assert sorted(listed) == sorted(script.comparable_flags())


def test_the_synchronizers_are_described():
    assert [row[0].split("`")[1] for row in cells(section("guide/gradients.md", "## Synchronizers"))] == list(
        dict.fromkeys(["auto", "bucketed", "flat", *SYNCHRONIZERS])
    )


def test_the_bound_of_small_shares_is_the_one_in_the_code():
    assert f"fewer than {SMALL_SHARE} samples" in (DOCS / "concepts" / "small-shares.md").read_text()


def test_the_launchers_are_listed_with_their_variables_innermost_first():
    rows = cells(section("guide/environment.md", "## Which launcher decides"))

    assert [[name, *(re.findall(r"`(\w+)`", cell) for cell in places)] for name, *places in rows] == [
        [
            launcher.name,
            [name for names in launcher.proof for name in names],
            *map(list, (launcher.rank, launcher.size, launcher.local_rank)),
            [*launcher.local_size] or [*filter(None, [launcher.layout])],
            *map(list, (launcher.node, launcher.nodes)),
        ]
        for launcher in LAUNCHERS
    ]


def test_every_variable_of_a_worker_is_listed():
    text = section("guide/launching.md", "## What a worker finds")

    for name in worker_variables(Place(), Round(run_id="r", restarts=0, max_restarts=0, master=("h", 1))):
        assert f"`{name}`" in text


def test_the_tree_of_errors_is_the_one_in_the_code():
    tree = (DOCS / "guide" / "errors.md").read_text().split("## ")[0]
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    ]

    parents = []  # (indentation, name) on the way down to the current line
    for indent, name in re.findall(r"^( +)(?:samestep\.)?([A-Z]\w+)", tree, re.MULTILINE):
        parents = [(depth, above) for depth, above in parents if depth < len(indent)]
        if name not in ("Exception", "AssertionError"):
            assert getattr(errors, name).__bases__[0].__name__ == parents[-1][1]
            classes.remove(getattr(errors, name))
        parents.append((len(indent), name))

    assert not classes


def test_the_changes_on_the_first_page_are_those_of_the_example():
    shown = re.findall(r"```python\n(.*?)```", (DOCS / "start.md").read_text(), re.DOTALL)
    example = (ROOT / "examples" / "joined.py").read_text().splitlines()

    lines = [line for block in shown for line in block.splitlines() if line]
    assert len(shown) >= 6
    assert [line for line in lines if line not in example] == []


def test_the_six_changes_in_the_readme_are_those_of_the_example():
    text = (ROOT / "README.md").read_text().split("make [six changes]")[1].split("\n\n")[1]
    example = [line.strip() for line in (ROOT / "examples" / "joined.py").read_text().splitlines()]

    shown = [re.split(r" +# +", line.strip()) for line in text.splitlines()]
    assert [about.split(".")[0] for _, about in shown if about[0].isdigit()] == list("123456")
    assert [line for line, _ in shown if line not in example] == []


def test_line_numbers_in_printed_output_are_those_of_the_example():
    example = (ROOT / "examples" / "joined.py").read_text().splitlines()
    printed = {
        (page.name, int(line))
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for line in re.findall(r"joined\.py:(\d+) samestep\.join", page.read_text())
    }

    assert printed
    assert {place for place in printed if "samestep.join()" not in example[place[1] - 1]} == set()
