"""Readers that are tested with wrong content: data, configurations, tables, studies, runs."""

import gzip
import io
import json
import lzma
import pickle
import tarfile
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Event

import numpy as np

from support.fuzz_mutations import as_json, mutated_json
from support.fuzz_reader import Reader, command
from support.fuzz_text_readers import WORDS, begin_flags
from support.idx_files import TinySet, idx_bytes
from support.image_files import png

_RECORD = 3073


def _packed(*contents):
    """Return contents as they are, and compressed in both ways."""
    return [
        packed
        for content in contents
        for packed in (content, gzip.compress(content, mtime=0), lzma.compress(content))
    ]


def _unchecked():
    """Accept all content as published, since content with wrong checksums is not read."""
    from samestep.training.data import published

    published.verify = lambda content, path, *, name, sha256: None


# --- data -----------------------------------------------------------------------------------------


@cache
def _idx():
    tiny = TinySet()
    bomb = idx_bytes(np.zeros((1, 1, 1), np.uint8))
    wide = (0x0803).to_bytes(4, "big") + b"\xff\xff\xff\xff" * 3
    huge = (0x0803).to_bytes(4, "big") + (2**31 - 1).to_bytes(4, "big") + (1).to_bytes(4, "big") * 2
    return [*_packed(*tiny.contents.values(), bomb, wide, huge), _bomb(gzip.compress), _bomb(lzma.compress)]


@cache
def _bomb(compress):
    """Return some kilobytes that decompress to 3 GB, after the header of a set of images."""
    head = (0x0803).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in (5, 3, 2))
    one = compress(bytes(8 << 20))
    return compress(head) + one * 400  # both formats are streams that may follow each other


def _read_idx(folder):
    entry = TinySet().entry
    found = entry.load("train", data_dir=folder)
    assert int(found.labels.max()) < len(entry.classes), "a label that is no class"


def _idx_beside(folder):
    TinySet().write(folder, "")


def _batch(seed=0, count=4):
    draw = np.random.default_rng(seed)
    records = draw.integers(0, 256, (count, _RECORD), dtype=np.uint8)
    records[:, 0] %= 10
    return records


def _as_pickle(labels, data, **more):
    return pickle.dumps({b"labels": labels, b"data": data, b"filenames": [b"a.png"] * 2, **more}, protocol=2)


@cache
def _cifar():
    table = _batch()
    data = np.ascontiguousarray(table[:, 1:])
    odd = [
        _as_pickle(labels, data)
        for labels in (
            [300, 1, 2, 3],
            [-1, 0, 0, 0],
            [10, 0, 0, 0],
            [0.5] * 4,
            [None] * 4,
            [[1]] * 4,
            [2**70] * 4,
        )
    ]
    bombs = [
        pickle.dumps({b"labels": [], b"data": np.zeros((0, _RECORD - 1), np.uint8)}, 2),
        b"\x80\x02]" + b"]a" * 10,
        b"\x80\x04\x8e" + (2**62).to_bytes(8, "little"),
        b"\x80\x02" + b"(" * 5_000_000,
    ]
    return [
        *_packed(table.tobytes(), _as_pickle(table[:, 0].tolist(), data)),
        *odd,
        *bombs,
        _bomb(gzip.compress),
        _bomb(lzma.compress),
    ]


@cache
def _archive():
    found = []
    for form in (lambda table: table.tobytes(), lambda table: _as_pickle(table[:, 0].tolist(), table[:, 1:])):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for number in range(1, 6):
                content = form(_batch(number, 1))
                info = tarfile.TarInfo(f"cifar-10/data_batch_{number}.bin")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        found.append(file.getvalue())
    return _packed(*found)


def _read_cifar(folder):
    from samestep.base.env import exported
    from samestep.training.data.sets.cifar10 import CIFAR10

    with exported({"XDG_CACHE_HOME": str(folder / "cache")}):
        found = CIFAR10.load("train", data_dir=folder)
    assert int(found.labels.max()) < len(found.classes), "a label that is no class"
    assert int(found.labels.min()) >= 0, "a label that is no class"


def _cifar_beside(folder):
    for number in range(1, 6):
        (folder / f"data_batch_{number}").write_bytes(_batch(number).tobytes())


@cache
def _images():
    from PIL import Image

    found = []
    for mode, size in (("RGB", (9, 7)), ("L", (5, 5)), ("P", (4, 8)), ("RGBA", (3, 3))):
        image = Image.new(mode, size, 3)
        for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
            file = io.BytesIO()
            try:
                image.save(file, form)
            except (OSError, KeyError):  # a mode that it does not have
                continue
            found.append(file.getvalue())
    file = io.BytesIO()
    Image.new("1", (8000, 8000)).save(file, "PNG")  # as many pixels as there may be
    return [*found, file.getvalue(), *(png(side, side) for side in (8200, 20_000, 2**31 - 1))]


def _read_image(folder):
    from samestep.training.data.sets.registry import load

    images = load("folder@8", "train", data_dir=folder)
    for index in range(len(images)):
        images[index]


def _begin_data():
    _unchecked()
    from PIL import Image

    Image.init()


# --- configurations, tables and studies -----------------------------------------------------------


def _toml():
    from support.run_folders import CONFIG

    site = '[slurm]\npartition = "gpu"\ncpus_per_task = 4\ntime = 30\nmodules = ["cuda"]\n[kubernetes]\n'
    recipe = (
        CONFIG + 'epochs = 3\nmilestones = [1.0, 2.5]\nseed = 7\naugment = "flip"\nema = 0.9\nsubset = 100\n'
    )
    dates = "epochs = 1979-05-27T07:32:00Z\nlr = [{a = {b = [1, 2]}}]\n'x'.y.z = 0x10\nseed = +nan\n"
    return [one.encode() for one in (site, recipe, CONFIG, dates)]


def _read_toml(folder):
    from samestep.base.config import table
    from samestep.submit.site_defaults import KubernetesSite, SlurmSite

    table(folder / "config.toml", "slurm", SlurmSite)
    table(folder / "config.toml", "kubernetes", KubernetesSite)


def _read_recipe(folder):
    return command("train", "digits", "--config", folder / "config.toml", "--out", folder / "out")


def _csv():
    return [
        b"workers,seconds\n1,10\n2,5.5\n4,3\n",
        b"1;10,5\n2;5,2\n4;3\n",
        b"# a\nn\ttime\tmode\n1\t10\tstrong\n2\t5\tstrong\n2\t10\tweak\n",
        "\ufeffranks seconds\n1 10\n8 2\n".encode(),
        b"workers,seconds\n1,1e-300\n2,1e300\n",
        b"1,1\n99999999999999999999,2\n",
    ]


def _report(folder, name):
    return command("report", folder / name, "--page", folder / "page.html")


@cache
def _study():
    from support.studies import study

    return (asdict(study()), asdict(study(modes=("strong", "weak"), variants=("", "sync=ddp"))))


@cache
def _golden():
    from samestep.verify.golden import Origin, golden_file
    from support.golden_runs import trained

    origin = Origin(script="a", arguments=(), commit="", workers=1, date="", machine={})
    return asdict(golden_file(origin, trained(steps=3), trained(steps=3, change=1e-6)))


def _read_golden(folder):
    from samestep.verify.causes import causes
    from samestep.verify.compare import Comparison
    from samestep.verify.golden import folded, read_golden
    from samestep.verify.parameter_alignment import UnmatchedParametersError
    from support.golden_runs import trained

    golden = read_golden(folder / "golden.json")
    try:
        golden, run = golden.aligned(trained(steps=3))
    except UnmatchedParametersError:
        return
    causes(Comparison(golden.run, folded(run), golden.control))


def _study_bytes():
    return [as_json(one) for one in _study()]


def _wrong_study(draw):
    return as_json(mutated_json(draw, draw.choice(json.loads(json.dumps(_study())))))


def _run_beside(folder):
    from support.run_folders import run_folder

    run_folder(folder / "run")


def _in_run(name):
    """Return a function that reads a run folder with a wrong file `name`."""

    def valid():
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            _run_beside(Path(folder))
            return [(Path(folder) / "run" / name).read_bytes()]

    def wrong(draw):
        rows = [json.loads(line) for line in valid()[0].splitlines()]
        for _ in range(draw.choice((1, 1, 2))):
            at = draw.randrange(len(rows))
            rows[at] = mutated_json(draw, rows[at])
        return b"".join(as_json(row) + b"\n" for row in rows)

    return {
        "file": f"run/{name}",
        "beside": _run_beside,
        "valid": cache(valid),
        "wrong": None if name.endswith("toml") else wrong,
        "read": lambda folder: _report(folder, "run"),
        "begin": _begin_commands,
    }


@cache
def _clocked():
    from tempfile import TemporaryDirectory

    from support.clocked_runs import clocked, write

    with TemporaryDirectory() as folder:
        write(Path(folder), clocked(2, steps=4))
        return (Path(folder) / "rank-1.jsonl").read_bytes()


def _clocked_beside(folder):
    from support.clocked_runs import clocked, write

    for workers in (1, 2):
        (folder / str(workers)).mkdir()
        write(folder / str(workers), clocked(workers, steps=4))


def _wrong_clocked(draw):
    rows = [json.loads(line) for line in _clocked().splitlines()]
    at = draw.randrange(len(rows))
    rows[at] = mutated_json(draw, rows[at])
    return b"".join(as_json(row) + b"\n" for row in rows)


def _read_clocked(folder):
    return command("report", folder / "1", folder / "2", "--page", folder / "page.html")


@cache
def _jobs():
    from tempfile import TemporaryDirectory

    from samestep.scaling.sweep.execution import Frame
    from samestep.scaling.sweep.plan import Request, plan
    from samestep.scaling.sweep.slurm_runs import SubmittedJob, write_jobs

    with TemporaryDirectory() as name:
        folder = Path(name)
        request = Request(
            target="train.py", workers=(1, 2), steps=3, warm_up=1, repeats=2, per_node=2, folder=folder
        )
        jobs = [SubmittedJob(number="7", log=Path("a"), trials=tuple(plan(request)))]
        write_jobs(folder, jobs, Frame(request=request, bar=0.7, places=4), ("samestep", "scale"))
        return json.loads((folder / "jobs.json").read_text())


def _read_jobs(folder):
    from samestep.scaling.sweep.slurm_runs import read_jobs

    read_jobs(folder)


_SCRIPT = b"import torch\nfrom torch import nn\n\ndef main():\n    print(nn.Linear(1, 2), 3)\n\nmain()\n"


def _read_script(folder):
    return command("run", "-n", 2, "--dry-run", folder / "train.py")


def _begin_commands():
    for name in ("samestep.training.recipes.run_recipe", "samestep.scaling.report.page"):
        import_module(name)


def _begin_verify():
    import_module("samestep.verify.golden_comparison")


def _idx_reader(name):
    return Reader(
        name=name,
        file=f"tiny-{name[4:]}-idx{3 if 'images' in name else 1}-ubyte",
        valid=_idx,
        read=_read_idx,
        beside=_idx_beside,
        begin=_begin_data,
    )


_FILES = (
    _idx_reader("idx-images"),
    _idx_reader("idx-labels"),
    Reader(
        name="cifar",
        file="data_batch_3",
        valid=_cifar,
        read=_read_cifar,
        beside=_cifar_beside,
        begin=_begin_data,
    ),
    Reader(
        name="cifar-archive",
        file="cifar-10-binary.tar.gz",
        valid=_archive,
        read=_read_cifar,
        begin=_begin_data,
    ),
    Reader(name="image", file="train/a/0.png", valid=_images, read=_read_image, begin=_begin_data),
    Reader(name="toml", file="config.toml", valid=_toml, read=_read_toml, begin=_begin_commands),
    Reader(name="recipe-toml", file="config.toml", valid=_toml, read=_read_recipe, begin=begin_flags),
    Reader(
        name="csv",
        file="times.csv",
        valid=_csv,
        read=lambda folder: _report(folder, "times.csv"),
        begin=_begin_commands,
    ),
    Reader(
        name="study",
        file="study.json",
        valid=_study_bytes,
        wrong=_wrong_study,
        read=lambda folder: _report(folder, "study.json"),
        begin=_begin_commands,
    ),
    Reader(
        name="golden-run",
        file="golden.json",
        valid=lambda: [as_json(_golden())],
        wrong=lambda draw: as_json(mutated_json(draw, json.loads(json.dumps(_golden())))),
        read=_read_golden,
        begin=_begin_verify,
    ),
    *(
        Reader(name=f"run-{name.partition('.')[0]}", **_in_run(name))
        for name in (
            "config.toml",
            "metrics.jsonl",
            "evaluations.jsonl",
            "ranks.jsonl",
            "sessions.jsonl",
            "result.json",
        )
    ),
    Reader(
        name="clocked",
        file="2/rank-1.jsonl",
        valid=lambda: [_clocked()],
        wrong=_wrong_clocked,
        beside=_clocked_beside,
        read=_read_clocked,
        begin=_begin_commands,
    ),
    Reader(
        name="jobs",
        file="jobs.json",
        valid=lambda: [as_json(_jobs())],
        read=_read_jobs,
        wrong=lambda draw: as_json(mutated_json(draw, _jobs())),
    ),
    Reader(name="script", file="train.py", valid=lambda: [_SCRIPT], read=_read_script, begin=_begin_commands),
)


def _read_faulty(content):
    """Execute the requested fault."""
    if content == b"hangs":
        Event().wait()
    if content == b"takes memory":
        bytearray(2 << 30)
    raise RecursionError


READERS = {reader.name: reader for reader in (*_FILES, *WORDS)}
"""By name."""
FAULTY = Reader(name="faulty", read=_read_faulty, valid=lambda: [b""])
"""What the harness has to find."""
