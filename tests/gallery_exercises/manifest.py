"""The wrong solutions of exercises, and the codes of their faults, the gravest first."""

from pathlib import Path

FUNCTIONS = {
    "whole_tensor_ring": ("different-bits", "too-much-sent"),
    "forgotten_receive": ("deadlock",),
    "both_send_first": ("deadlock",),
    "mean_without_division": ("sum-for-mean",),
    "only_the_roots_tensor": ("own-input", "wrong-values"),
    "zeroing_broadcast": ("only-zeros",),
    "changed_beside_the_root": ("input-changed",),
    "one_buffer_for_all": ("wrong-values",),
    "always_from_rank_0": ("own-input", "wrong-values"),
    "ring_of_chunks": ("error",),
    "divided_by_one_less": ("sum-for-mean", "wrong-values"),
    "own_twice": ("wrong-values",),
    "in_order_of_arrival": ("wrong-values",),
    "no_modulo": ("error",),
    "float32_buffers": ("error",),
}
"""Codes of the files of this folder, by stem."""

SCRIPTS = {
    "gradients_never_averaged": (
        "trainer",
        "            dist.all_reduce(parameter.grad)\n",
        "",
        "never-averaged",
    ),
    "gradients_summed": ("trainer", "            parameter.grad /= self.size\n", "", "sum-not-mean"),
    "sampler_without_epoch": ("trainer", "            self.sampler.set_epoch(epoch)\n", "", "no-set-epoch"),
    "padded_evaluation": (
        "trainer",
        (
            "share = Subset(self.test_set, range(self.rank, len(self.test_set), self.size))\n"
            "        self.test_loader = DataLoader(share, BATCH)"
        ),
        (
            "share = DistributedSampler(self.test_set, self.size, self.rank)\n"
            "        self.test_loader = DataLoader(self.test_set, BATCH, sampler=share)"
        ),
        "padded-evaluation",
    ),
    "saved_on_all_ranks": (
        "trainer",
        '        if self.rank == 0:\n            torch.save(self.model.state_dict(), "trainer.pt")\n',
        '        torch.save(self.model.state_dict(), "trainer.pt")\n',
        "several-writers",
    ),
    "buffers_forgotten": (
        "trainer",
        "            dist.broadcast(buffer, src=0)\n",
        "            pass\n",
        "buffers-differ-at-start",
    ),
    "parameters_forgotten": (
        "trainer",
        "            dist.broadcast(parameter.data, src=0)\n",
        "            pass\n",
        "replicas-differ-at-start",
    ),
    "evaluation_of_one_rank": ("trainer", "        dist.all_reduce(right)\n", "", "local-metric"),
    "count_divided": ("trainer", "return int(right)\n", "return int(right) // self.size\n", "local-metric"),
    "evaluation_on_rank_0": (
        "trainer",
        "            right = self.evaluate()\n",
        "            if self.rank == 0:\n                right = self.evaluate()\n",
        "crash",
    ),
    "parameters_averaged": (
        "trainer",
        "            dist.all_reduce(parameter.grad)\n            parameter.grad /= self.size\n",
        (
            "            pass\n"
            "        self.optimizer.step()\n"
            "        for parameter in self.model.parameters():\n"
            "            dist.all_reduce(parameter.data)\n"
            "            parameter.data /= self.size\n"
            "        return\n"
        ),
        "update",
    ),
    "optimizer_of_copies": (
        "trainer",
        "AdamW(self.model.parameters(), lr=0.01)",
        "AdamW([nn.Parameter(one.clone()) for one in self.model.parameters()], lr=0.01)",
        "optimizer-holds-other",
    ),
    "gradients_not_zeroed": (
        "trainer",
        "        self.optimizer.zero_grad()\n",
        "",
        "gradients-not-zeroed",
    ),
    "epoch_from_one": ("trainer", "set_epoch(epoch)", "set_epoch(epoch + 1)", "other-order"),
    "wrapper_not_called": (
        "six-steps",
        "F.cross_entropy(model(inputs)",
        "F.cross_entropy(model.module(inputs)",
        "never-averaged",
    ),
    "batch_of_each_rank": ("six-steps", "BATCH // size", "BATCH", "batch-times-n"),
    "wrapper_saved": ("six-steps", "model.module.state_dict()", "model.state_dict()", "module-keys"),
    "group_of_each_rank": (
        "six-steps",
        'dist.init_process_group("gloo")\n',
        'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)\n',
        "silent-copies",
        "several-writers",
    ),
}
"""Changes of solutions that make them wrong: the exercise, the text, its replacement, and the codes."""


def path_of(name: str) -> Path:
    """Return the file of a wrong function."""
    return Path(__file__).parent / f"{name}.py"
