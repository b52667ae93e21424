"""What ``samestep train`` makes of what was asked for: an order, or one line that says what to do."""

import pytest
import tomli_w

from samestep.base.errors import UsageError
from samestep.recipes.order import take_order
from samestep.recipes.request import Request


def order(workers=1, **asked):
    return take_order(Request(**{"changes": {}, **asked}), workers=workers)


def refused(**asked):
    with pytest.raises(UsageError) as told:
        order(**asked)
    return str(told.value)


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that has begun: digits at a rate of 0.5, on 640 samples."""
    folder = tmp_path / "begun"
    folder.mkdir()
    config = order(recipe="digits", subset=640, changes={"lr": 0.5, "precision": "auto", "keep": 5}).config()
    (folder / "config.toml").write_text(tomli_w.dumps({**config, "precision": "fp32"}))
    return folder


def test_one_command_begins_a_run_and_goes_on_with_it(begun, tmp_path):
    command = {"recipe": "digits", "subset": 640, "changes": {"lr": 0.5, "precision": "auto"}}

    first = order(**command, resume=tmp_path / "new")
    later = order(**command, resume=begun)

    assert (first.resume, first.out) == (False, tmp_path / "new")
    assert (later.resume, later.out) == (True, begun)
    assert (later.settings.lr, later.settings.precision, later.conduct.keep) == (0.5, "fp32", 5)


def test_a_configuration_file_begins_a_run_and_goes_on_with_it(begun, tmp_path):
    first = order(config=begun / "config.toml", resume=tmp_path / "new")
    later = order(config=begun / "config.toml", resume=begun)

    assert (first.resume, later.resume) == (False, True)
    assert first.config() == later.config()


def test_nothing_begins_in_a_folder_that_holds_no_run_unless_a_recipe_is_named(tmp_path):
    assert "so it is no run folder" in refused(resume=tmp_path, changes={"lr": 0.5})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"changes": {"lr": 0.1}},
            "there --lr is 0.5, not 0.1. Leave it out, or begin another run: --config",
        ),
        ({"changes": {"clip_norm": 1.0}}, "there --clip-norm is not set, not 1.0"),
        ({"recipe": "mnist"}, "there the recipe is digits, not mnist"),
        ({"recipe": "digits", "subset": 64}, "there --subset is 640, not 64"),
        ({"fast": True}, "there --fast is False, not True"),
        ({"batch_per_worker": 8}, "--batch-per-worker does not go with --resume"),
        ({"lr_scale": "none"}, "--lr-scale does not go with --resume"),
    ],
)
def test_a_run_does_not_go_on_as_another(begun, asked, message):
    assert message in refused(resume=begun, **asked)


def test_a_run_goes_on_kept_and_watched_as_its_start_says(begun, tmp_path):
    watched = {"keep": 3, "checkpoint_minutes": 1.0, "profile": "5:6", "per_rank": True}
    found = order(resume=begun, data_dir=tmp_path, changes=watched)

    assert {name: getattr(found.conduct, name) for name in watched} == watched
    assert found.data_dir == tmp_path
    assert found.settings == order(resume=begun).settings
