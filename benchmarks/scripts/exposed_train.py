"""``samestep train`` in windows of steps, some without exchange: FOLDER ROUNDS STEPS, train's arguments."""

import sys
from pathlib import Path

from windows import Windows, exchange_of_worlds

from samestep.cli.main import main
from samestep.training.loop.training_loop import Training
from samestep.training.recipes import run_recipe

folder, rounds, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


class InWindows(Training):
    """A training that tells the windows of its steps."""

    def __init__(self, *arguments, **others):
        super().__init__(*arguments, **others)
        self._switch = exchange_of_worlds()
        self._is_with = True
        self._parts, self.batches = self.batches, self
        self._real_look, self.journal.look = self.journal.look, self.look
        self.windows = Windows(
            folder / f"windows-{self.world.place.rank}",
            rounds=rounds,
            steps=steps,
            exchanging=self.exchanging,
            barrier=self.world.barrier,
            gather=self.world.all_gather_objects,
        )

    def __len__(self):
        return len(self._parts)

    def epoch(self, position=None):
        """Yield the parts of an epoch, and let the windows know of each."""
        for part in self._parts.epoch(position):
            self.windows.begin_step()
            yield part

    def exchanging(self, on):
        """Exchange from now on, or do not."""
        self._is_with = on
        self._switch(on)

    def look(self, *wishes):
        """Look up together in any window: the ranks must agree when they look again."""
        self._switch(True)
        try:
            return self._real_look(*wishes)
        finally:
            self._switch(self._is_with)


run_recipe.Training = InWindows
sys.argv[1:] = sys.argv[4:]
main()
