"""A checkpoint is scored with the weights that the run evaluated."""

import pytest

from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.recipes.resolve import Request, resolve
from samestep.training.recipes.run_recipe import run_recipe, score

QUICK = {"batch_size": 50, "epochs": 2, "seed": 3}


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_averaged_weights_are_scored_if_a_checkpoint_has_them_and_this_is_printed(tmp_path, capsys, ema):
    out = tmp_path / "run"
    order = resolve(Request(subset=200, changes={**QUICK, "ema": ema}, out=out), workers=1)
    result = run_recipe(SoloWorld(), order)
    folder = out / "checkpoints" / f"step-{result.steps}"
    capsys.readouterr()

    for weights in (folder, folder.parent):
        asked = resolve(Request(changes={}, weights=weights), workers=2)
        for found in run_ranks(lambda world, asked=asked: score(world, asked), 2):
            assert (found.correct, found.total) == (result.correct, result.total)
            assert found.loss == pytest.approx(result.loss, rel=1e-5)
        assert capsys.readouterr().err.count("(--ema)") == bool(ema)

    trained = resolve(Request(changes={}, weights=folder / "model.safetensors"), workers=1)
    same = score(SoloWorld(), trained).loss == pytest.approx(result.loss, rel=1e-5)
    assert same == (not ema)
