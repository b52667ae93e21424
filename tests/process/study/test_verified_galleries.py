"""What `verify` says of scripts of many styles: serial ones shared out, distributed ones right and faulty."""

from pathlib import Path

import pytest

import gallery_ddp.manifest
from gallery.manifest import SCRIPTS as SERIAL
from gallery_ddp.manifest import DIFFERENT, SAME, SAME_BUT, SCRIPTS
from samestep.base.errors import UsageError

REFUSED = {"forward_by_name.py", "simclr_inside.py"}
"""Serial scripts that cannot be split."""
NEEDS_GPU = {"hard_coded_cuda.py"}

ON_THREE = {
    "accumulation.py",
    "gan.py",
    "iterable_data.py",
    "lbfgs.py",
    "rnn_classifier.py",
    "toplevel_cnn.py",
    "zero_head.py",
}
"""Serial scripts that are verified on 3 workers, too; `autopilot/test_gallery.py` runs all of them there."""


def named(script):
    return script.name.removesuffix(".py")


def causes(report):
    return sorted({finding["cause"] for finding in report["findings"]})


@pytest.mark.parametrize("script", [s for s in SERIAL if s.name not in REFUSED | NEEDS_GPU], ids=named)
def test_a_serial_script_is_the_same_on_several_workers(verifier, script):
    workers = (2, 3) if script.name in ON_THREE else (2,)
    report = verifier.verify(script.path, arguments=script.arguments, steps=5, workers=workers)
    assert (report["verdict"], causes(report)) == ("same", [])
    assert report["steps"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_script_that_cannot_be_shared_out_is_different_and_says_so(verifier, name):
    script = next(one for one in SERIAL if one.name == name)
    report = verifier.verify(script.path, steps=5)
    assert (report["verdict"], causes(report)) == (DIFFERENT, ["refused"])
    assert "silent copies" in report["findings"][0]["message"]


def test_a_script_that_fails_on_one_worker_is_not_verified(verifier):
    script = next(one for one in SERIAL if one.name in NEEDS_GPU)
    with pytest.raises(UsageError, match="fails on one worker already"):
        verifier.verify(script.path, steps=5)


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.verdict == SAME], ids=named)
def test_a_right_distributed_script_is_the_same(verifier, script):
    report = verifier.verify(script.path, mode=script.mode, workers=(2, 3))
    assert (report["verdict"], causes(report)) == (SAME, [])


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.verdict == DIFFERENT], ids=named)
def test_what_differs_is_named(verifier, script):
    report = verifier.verify(script.path, mode=script.mode)
    assert (report["verdict"], causes(report)) == (DIFFERENT, [script.cause]), report["findings"]
    assert not any(finding["is_exception"] for finding in report["findings"])


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.verdict == SAME_BUT], ids=named)
def test_what_workers_may_do_apart_is_an_exception(verifier, script):
    report = verifier.verify(script.path, workers=(2, 3), steps=5)
    assert (report["verdict"], causes(report)) == (SAME_BUT, [script.cause]), report["findings"]
    assert [finding["workers"] for finding in report["findings"]] == [2, 3]
    assert all(finding["is_exception"] for finding in report["findings"])


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.twin], ids=named)
def test_a_distributed_script_is_the_same_as_its_serial_twin(verifier, script):
    report = verifier.verify(script.path, against=script.path.parent / script.twin)
    assert (report["verdict"], causes(report)) == (script.verdict, [script.cause] if script.cause else [])


NOISY_AND_FAULTY = {
    "vae_per_rank.py": {
        "divided-twice": (" / len(x)", ""),
    },
    "diffusion.py": {
        "never-averaged": ("model(noisy", "model.module(noisy"),
        "overlapping-shards": ("sampler=sampler", "shuffle=True, generator=torch.Generator().manual_seed(2)"),
    },
}


@pytest.mark.parametrize(
    ("name", "cause"), [(n, c) for n, faults in NOISY_AND_FAULTY.items() for c in faults]
)
def test_a_fault_is_found_beneath_noise_of_each_worker(verifier, tmp_path, name, cause):
    text = (Path(gallery_ddp.manifest.__file__).parent / name).read_text()
    right, faulty = NOISY_AND_FAULTY[name][cause]
    assert right in text
    (tmp_path / name).write_text(text.replace(right, faulty))
    report = verifier.verify(tmp_path / name, steps=4)
    assert (report["verdict"], causes(report)) == (DIFFERENT, [cause]), report["findings"]
