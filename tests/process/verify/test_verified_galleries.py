"""`verify` finds the verdict and the cause for serial and distributed scripts of many styles."""

from pathlib import Path

import pytest

import gallery_ddp.manifest
from gallery.manifest import SCRIPTS as SERIAL
from gallery_ddp.manifest import DIFFERENT, INCONCLUSIVE, SAME, SAME_BUT, SCRIPTS
from samestep.base.errors import UsageError
from support.tiers import mostly_long, stem
from support.verifier import SHORT_HANG_S

NEEDS_GPU = {"hard_coded_cuda.py"}

SHORT_SERIAL = (
    *("amp_scaler", "forward_by_name", "gpt_loss_inside", "iterable_data", "kept_in_objects", "lbfgs"),
    *("two_targets", "unseeded", "wgan_gp"),
)
"""Scripts that verification reads in different ways: steps, draws, samples, notes, calls unsplit or none."""


def first_of_each_cause(scripts):
    """Return the names of the first script with each verdict and cause."""
    return {stem(script) for script in {(s.verdict, s.cause): s for s in reversed(scripts)}.values()}


def causes(report):
    return sorted({finding["code"] for finding in report["findings"]})


VERIFIED = [script for script in SERIAL if script.name not in NEEDS_GPU]


@pytest.mark.parametrize("script", mostly_long(VERIFIED, SHORT_SERIAL, stem))
def test_a_serial_script_is_the_same_on_two_workers(verifier, script):
    report = verifier.verify(script.path, arguments=script.arguments, steps=5)
    assert (report["verdict"], causes(report)) == ("same", [*script.notes])
    assert report["steps"]


def test_a_script_that_fails_on_one_worker_is_not_verified(verifier):
    script = next(one for one in SERIAL if one.name in NEEDS_GPU)
    with pytest.raises(UsageError, match="fails on 1 worker"):
        verifier.verify(script.path, steps=5)


RIGHT = [script for script in SCRIPTS if script.verdict == SAME]
SHORT_RIGHT = ("accumulation_and_schedule", "averaged_by_hand", "snapshots", "two_networks")


@pytest.mark.parametrize("script", mostly_long(RIGHT, SHORT_RIGHT, stem))
def test_a_correct_distributed_script_is_the_same(verifier, script):
    report = verifier.verify(script.path, mode=script.mode)
    assert (report["verdict"], causes(report)) == (SAME, [])


WRONG = [script for script in SCRIPTS if script.verdict in (DIFFERENT, INCONCLUSIVE)]


# Ranks with different numbers of steps wait until they are ended, which `test_verified_hangs` shows.
@pytest.mark.parametrize("script", mostly_long(WRONG, first_of_each_cause(WRONG) - {"steps_differ"}, stem))
def test_the_cause_of_a_difference_is_found(verifier, script):
    hang_s = SHORT_HANG_S if script.cause == "steps-differ" else 20.0
    report = verifier.verify(script.path, mode=script.mode, hang_s=hang_s)
    expected = sorted({script.cause, script.beside} - {""})
    assert (report["verdict"], causes(report)) == (script.verdict, expected), report["findings"]
    assert not any(finding["gravity"] == "exception" for finding in report["findings"])


EXCEPTIONS = [script for script in SCRIPTS if script.verdict == SAME_BUT]


@pytest.mark.parametrize("script", mostly_long(EXCEPTIONS, first_of_each_cause(EXCEPTIONS), stem))
def test_a_legitimate_difference_between_ranks_is_an_exception(verifier, script):
    report = verifier.verify(script.path, steps=5)
    assert (report["verdict"], causes(report)) == (SAME_BUT, [script.cause]), report["findings"]
    assert [finding["workers"] for finding in report["findings"]] == [2]
    assert all(finding["gravity"] == "exception" for finding in report["findings"])


@pytest.mark.parametrize("script", mostly_long([s for s in SCRIPTS if s.twin], ("ddp_tutorial",), stem))
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


NOISY_CASES = [(name, cause) for name, faults in NOISY_AND_FAULTY.items() for cause in faults]


@pytest.mark.parametrize("case", mostly_long(NOISY_CASES, ("diffusion.py-never-averaged",), "-".join))
def test_a_fault_is_found_despite_different_noise_on_each_worker(verifier, tmp_path, case):
    name, cause = case
    text = (Path(gallery_ddp.manifest.__file__).parent / name).read_text()
    right, faulty = NOISY_AND_FAULTY[name][cause]
    assert right in text
    (tmp_path / name).write_text(text.replace(right, faulty))
    report = verifier.verify(tmp_path / name, steps=4)
    assert (report["verdict"], causes(report)) == (DIFFERENT, sorted([cause, "random-per-worker"]))
    assert [finding["code"] for finding in report["findings"] if finding["gravity"] != "exception"] == [cause]
