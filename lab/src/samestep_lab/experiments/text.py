"""Formats experiments: the list, the result of one as text, and as a page."""

from typing import Any

from samestep.base.units import counted
from samestep.report.drawing import patterns
from samestep.report.page import bullets, page, section, table, text_table
from samestep_lab.experiments.experiment import Experiment, Outcome
from samestep_lab.experiments.registry import EXPERIMENTS


def listing() -> str:
    """Return the experiments with their questions, a line each."""
    width = max(map(len, EXPERIMENTS)) + 2
    return "\n".join(f"{experiment['name']:{width}}{experiment['question']}" for experiment in listed())


def listed() -> list[dict[str, str]]:
    """Return the names of the experiments with their questions."""
    return [{"name": experiment.name, "question": experiment.question} for experiment in EXPERIMENTS.values()]


def _about(experiment: Experiment) -> dict[str, str]:
    return {"does": experiment.does, "expected": experiment.expect}


def outcome_text(experiment: Experiment, outcome: Outcome) -> str:
    """Return what an experiment does, what to expect, what was measured, and why."""
    head = [f"{experiment.name}: {experiment.question}"]
    before = [f"{name}: {text}" for name, text in _about(experiment).items()]
    tables = [
        "\n".join([*([content.title] if content.title else []), *text_table(content.head, content.rows)])
        for content in outcome.tables
    ]
    after = [f"measured: {outcome.measured}", f"why: {experiment.why}"]
    return "\n\n".join(["\n".join(head + before), *tables, "\n".join(after)])


def outcome_page(experiment: Experiment, outcome: Outcome, *, workers: int) -> str:
    """Return the result of an experiment as an HTML page, with its figures."""
    tables = [
        section(
            content.title or "Table",
            table(content.rows, head=content.head),
        )
        for content in outcome.tables
    ]
    figures = [chart.render() for chart in outcome.charts]
    body = [
        f"<h1>{experiment.question}</h1>",
        bullets([*_about(experiment).values()], "about"),
        *([patterns(), *figures] if figures else []),
        *tables,
        section("Measured", bullets([outcome.measured], "measured")),
        section("Why", bullets([experiment.why], "why")),
    ]
    foot = f"samestep lab {experiment.name}, {counted(workers, 'worker')}"
    return page(f"samestep lab: {experiment.name}", body, foot=foot)


def outcome_record(experiment: Experiment, outcome: Outcome, *, workers: int) -> dict[str, Any]:
    """Return the result of an experiment as a JSON object."""
    return {
        "experiment": experiment.name,
        "question": experiment.question,
        "workers": workers,
        "measured": outcome.measured,
        "values": dict(outcome.values),
    }
