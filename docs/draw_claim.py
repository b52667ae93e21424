"""Draws the README's picture: the losses of one script on 1, 2 and 4 workers, and the speedup.

python docs/draw_claim.py --measure    runs the script, some minutes; writes docs/images/claim.json
python docs/draw_claim.py              writes docs/images/claim.svg from that file
python docs/draw_claim.py --check      exits with 1 if the picture is out of date
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from samestep.report.charts import LineChart, PointChart
from samestep.report.drawing import WIDTH, DataPoint

ROOT = Path(__file__).parents[1]
SCRIPT = "examples/image_classification.py"
DATA = ROOT / "docs" / "images" / "claim.json"
PICTURE = DATA.with_suffix(".svg")
WORKERS = (1, 2, 4)
_STUDY = "--steps 20 --repeats 3 --json"
_RATES = ("samples_per_second", "samples_per_second_low", "samples_per_second_high")
_LOSS = re.compile(r"step +\d+: loss (\S+)")
_GAP = 16
_STROKE = 4.0
"""Width of the lines of losses."""
_LETTERS = 1.3
"""Factor of all font sizes, since the picture is shown at half its size."""


def measured() -> dict[str, Any]:
    """Return the losses and the rates on each number of workers."""
    with tempfile.TemporaryDirectory() as folder:
        return {"script": SCRIPT, "losses": losses(folder), **rates(folder)}


def losses(folder: str) -> dict[str, list[float]]:
    """Run the script on each number of workers, and return the loss of each step."""
    options = ("--threads", "1", str(ROOT / SCRIPT), "--samples", "6144")
    runs = {str(n): _samestep(folder, "run", "-n", str(n), *options) for n in WORKERS}
    return {n: [float(loss) for loss in _LOSS.findall(out)] for n, out in runs.items()}


def rates(folder: str) -> dict[str, Any]:
    """Run a scaling study of the script, at the numbers of workers that have a core each."""
    cores = len(os.sched_getaffinity(0))
    numbers = ",".join(str(n) for n in WORKERS if n <= cores)
    words = ("-n", numbers, *_STUDY.split(), str(ROOT / SCRIPT))
    return of_study(json.loads(_samestep(folder, "scale", *words)))


def of_study(study: dict[str, Any]) -> dict[str, Any]:
    """Return the rates of a study, with its time and machine."""
    machine, measured_at = study["machine"], study["points"] + study["one_process"]
    return {
        "date": study["created"],
        "machine": {name: machine[name][0] for name in ("processor", "node_processors", "torch")},
        "points": [{name: one[name] for name in ("workers", "threads", *_RATES)} for one in measured_at],
    }


def _samestep(folder: str, *words: str) -> str:
    command = [sys.executable, "-m", "samestep", *words]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def deviation(losses: dict[str, list[float]]) -> float:
    """Return the largest relative difference of a loss from that on one worker."""
    serial, *others = losses.values()
    return max(abs(a - b) / a for one in others for a, b in zip(serial, one, strict=True))


def svg(claim: dict[str, Any]) -> str:
    """Return the picture."""
    losses = claim["losses"]
    # The letters are larger than the room of a long name.
    lines = {
        f"{n} workers" if n == str(WORKERS[-1]) else n: [DataPoint(k, y, y, y) for k, y in enumerate(one)]
        for n, one in losses.items()
    }
    left = LineChart(
        title=f"The same losses, up to {deviation(losses):.0e} of their value",
        x="step",
        y="loss",
        lines=lines,
    ).svg()
    cores = claim["machine"]["node_processors"]
    right = PointChart(
        title=f"Speedup over one worker with one thread, on {cores} cores",
        y="times as fast",
        lines={"speedup": speedups(claim)},
        ideal=lambda workers: min(workers, cores),
        ideal_name=f"{cores} cores",
        text=lambda value: f"{value:.2f}x",
    ).svg()
    left = re.sub(r'stroke-width="[\d.]+" stroke-linejoin', f'stroke-width="{_STROKE}" stroke-linejoin', left)
    height = int(re.findall(r'height="(\d+)"', left)[0])
    parts = (_nested(one, x) for one, x in ((left, 0), (right, WIDTH + _GAP)))
    width = 2 * WIDTH + _GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    text = "\n".join([head, *parts, "</svg>", ""])
    return re.sub(r'font-size="([\d.]+)', lambda found: f'font-size="{float(found[1]) * _LETTERS:g}', text)


def speedups(claim: dict[str, Any]) -> list[DataPoint]:
    """Return the samples per second of each number of workers over those of one worker with one thread."""
    points = [one for one in claim["points"] if one["threads"] == 1]
    serial = points[0]["samples_per_second"]
    return [DataPoint(one["workers"], *(one[name] / serial for name in _RATES)) for one in points]


def _nested(text: str, x: int) -> str:
    return text.rstrip().replace("<svg ", f'<svg x="{x}" ', 1)


def main() -> int:
    """Measure, draw, or check."""
    if "--measure" in sys.argv:
        DATA.write_text(json.dumps(measured(), indent=1) + "\n")
    new = svg(json.loads(DATA.read_text()))
    if "--check" in sys.argv:
        return 0 if PICTURE.read_text() == new else 1
    PICTURE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
