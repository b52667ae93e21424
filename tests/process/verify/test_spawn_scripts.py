"""`verify` treats the workers that a script spawns like those that a launcher starts."""

from pathlib import Path

import pytest

import gallery_ddp.manifest
from gallery_ddp.manifest import DIFFERENT, SAME
from samestep.base.errors import UsageError
from samestep.base.folders import shown
from support.tiers import long_param

GALLERY = Path(gallery_ddp.manifest.__file__).parents[1] / "gallery_spawn"
BY_COUNT, BY_FLAG = GALLERY / "trains_by_count.py", GALLERY / "spawns_by_flag.py"
BY_HAND = GALLERY / "starts_processes.py"
CALL = "mp.spawn(train, args=(args.gpus, args.fault), nprocs=args.gpus)"
STARTED = 'train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args.fault)'
ADDRESS = 'os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"'


def verify(verifier, script, *arguments, workers=(2,), steps=6):
    return verifier.verify(script, arguments=arguments, workers=workers, steps=steps, device="cpu")


def started_by_a_launcher(folder):
    """Return the script with the change that the guide to launching describes."""
    text = BY_COUNT.read_text()
    for before, after in ((CALL, STARTED), (ADDRESS, "pass"), (", rank=rank, world_size=size", "")):
        assert before in text
        text = text.replace(before, after)
    script = folder / "train.py"
    script.write_text(text)
    return script


def test_a_script_that_may_spawn_and_reads_a_launchers_rank_is_started_by_one(verifier, tmp_path):
    script = started_by_a_launcher(tmp_path)
    text = script.read_text()
    script.write_text(text.replace(STARTED, f'{CALL} if os.environ.get("SPAWNS") else {STARTED}'))

    report = verify(verifier, script)

    assert (report["verdict"], report["steps"]) == (SAME, 6)


@pytest.mark.parametrize("arguments", [(), ("--gpus", "{n}")], ids=["by count", "by flag"])
def test_a_correct_script_is_the_same_until_its_end(verifier, arguments):
    report = verify(verifier, BY_COUNT, *arguments, workers=(2, 3), steps=30)

    assert (report["verdict"], report["findings"]) == (SAME, [])
    assert report["steps"] == 20
    assert report["max_relative_deviation"].keys() == {"2", "3"}


def test_a_script_that_is_stopped_after_its_steps_does_not_continue_without_its_workers(verifier):
    report = verify(verifier, BY_FLAG, "--gpus", "{n}", steps=3)

    assert (report["verdict"], report["steps"]) == (SAME, 3)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("never-averaged", "never-averaged"),
        ("same-batches", "overlapping-shards"),
        ("no-set-epoch", "no-set-epoch"),
        ("crash", "crash"),
    ],
)
def test_a_fault_of_spawned_workers_is_found(verifier, fault, cause):
    spawns = verify(verifier, BY_COUNT, "--fault", fault)

    assert [one["code"] for one in spawns["findings"]] == [cause]
    assert spawns["verdict"] == DIFFERENT
    assert fault != "crash" or "ValueError" in spawns["findings"][0]["message"]


def test_a_worker_that_dies_is_named(verifier):
    (finding,) = verify(verifier, BY_COUNT, "--fault", "dies")["findings"]

    assert (finding["code"], finding["ranks"], finding["step"]) == ("crash", [1], 2)
    line = BY_COUNT.read_text().splitlines().index("        os.abort()") + 1
    assert (finding["file"], finding["line"]) == (shown(str(BY_COUNT)), line)


@pytest.mark.parametrize("flags", [(), long_param(("--gpus", "{n}"))], ids=["by count", "by flag"])
def test_a_script_that_trains_on_one_worker_without_spawning_it_is_its_own_reference(
    verifier, tmp_path, flags
):
    text = BY_COUNT.read_text()
    alone = f"{CALL} if args.gpus > 1 else train(0, 1, args.fault)"
    (tmp_path / "train.py").write_text(text.replace(CALL, alone))

    report = verify(verifier, tmp_path / "train.py", *flags)
    # The line that the script prints behind its workers is in the output of the reference only.
    assert {one["code"] for one in report["findings"] if one["gravity"] != "exception"} == set()
    faulty = verify(verifier, tmp_path / "train.py", *flags, "--fault", "never-averaged")
    assert [one["code"] for one in faulty["findings"]] == ["never-averaged"]


def test_another_number_of_workers_than_asked_for_is_refused(verifier):
    with pytest.raises(UsageError, match="spawns 2 workers, and -n 1"):
        verify(verifier, BY_COUNT, "--gpus", "2")


@pytest.mark.parametrize("fault", ["", "never-averaged", long_param("crash")])
def test_processes_that_a_script_starts_by_hand_are_compared_too(verifier, fault):
    report = verify(verifier, BY_HAND, "--size", "{n}", "--fault", fault)

    causes = [one["code"] for one in report["findings"]]
    assert (report["verdict"], causes) == ((DIFFERENT, [fault]) if fault else (SAME, []))


@pytest.mark.long
def test_the_loaders_of_its_workers_may_have_processes(verifier, tmp_path):
    (tmp_path / "train.py").write_text(
        BY_COUNT.read_text().replace("sampler=sampler)", "sampler=sampler, num_workers=1)")
    )

    assert verify(verifier, tmp_path / "train.py", steps=2)["verdict"] == SAME


def test_a_failure_that_the_script_catches_is_a_failure(verifier, tmp_path):
    text = BY_COUNT.read_text().replace("os.abort()", "os._exit(3)")
    caught = f"try:\n        {CALL}\n    except Exception: return"
    (tmp_path / "train.py").write_text(text.replace(CALL, caught))
    report = verify(verifier, tmp_path / "train.py", "--fault", "dies")

    assert [one["code"] for one in report["findings"]] == ["crash"]


@pytest.mark.long
def test_a_script_may_spawn_again_after_its_training(verifier, tmp_path):
    again = "mp.spawn(train, args=(args.gpus, ''), nprocs=args.gpus)"
    (tmp_path / "train.py").write_text(BY_COUNT.read_text().replace(CALL, f"{CALL}; {again}"))
    report = verify(verifier, tmp_path / "train.py", steps=30)
    faulty = verify(verifier, tmp_path / "train.py", "--fault", "never-averaged", steps=30)

    assert (report["verdict"], report["steps"]) == (SAME, 20)
    assert [one["code"] for one in faulty["findings"]] == ["never-averaged"]
