"""Declares every attribute that only `samestep verify` replaces; see `declarations`."""

from samestep.hooks.declarations import FETCHER, LOADER, MAP_FETCHER
from samestep.hooks.registry import Hook

_VERIFY = "verify"
SHUFFLED = Hook("torch.utils.data:DistributedSampler", "__iter__", _VERIFY, "the epoch that it shuffles")
RECORDED_CALL = Hook(
    "torch.nn:Module", "__call__", _VERIFY, "inputs and outputs of all modules in a step that differs"
)
PROBED_FETCH = Hook(FETCHER, "fetch", _VERIFY, "whether loading a sample draws random numbers")
NEXT_BATCH = Hook(
    LOADER,
    "__next__",
    _VERIFY,
    "the end of a pass over a loader; random numbers depend on the last batch's samples",
)
SEEDED_FETCH = Hook(MAP_FETCHER, "fetch", _VERIFY, "random numbers depend on the loaded sample")
JOINED = Hook(
    "torch.distributed.algorithms.join:Join", "__exit__", _VERIFY, "steps that a rank without a batch shadows"
)
COMMUNICATION_HOOK = Hook(
    "torch.nn.parallel:DistributedDataParallel",
    "register_comm_hook",
    _VERIFY,
    "whether gradients are compressed",
    arguments=("self", "state", "hook"),
)
FROM_NUMPY = Hook("torch", "from_numpy", _VERIFY, "data are converted in the run in double precision")
DROPOUTS = tuple(
    Hook("torch.nn.functional", name, _VERIFY, "dropout is disabled in the run without random features")
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
)
ATTENTION = Hook(
    "torch.nn.functional",
    "scaled_dot_product_attention",
    _VERIFY,
    "its dropout is disabled in the run without random features",
    arguments=("query", "key", "value", "attn_mask", "dropout_p"),
)
NORM_CLIPS = tuple(
    Hook(owner, "clip_grad_norm_", _VERIFY, "the norm of gradients before they are clipped")
    for owner in ("torch.nn.utils", "torch.nn.utils.clip_grad")
)
GROUP_OF_NORM = Hook(
    "torch.nn:SyncBatchNorm", "__init__", _VERIFY, "batch norm over all ranks in place of those of a group"
)
REDUCTIONS = tuple(
    Hook("torch.distributed", name, _VERIFY, "numbers that the ranks combine in an evaluation")
    for name in ("all_reduce", "reduce")
)
GATHERS = tuple(
    Hook("torch.distributed", name, _VERIFY, "whether the ranks gather results in an evaluation")
    for name in (
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "gather", "gather_object"),
        *("all_to_all", "all_to_all_single", "reduce_scatter", "reduce_scatter_tensor"),
    )
)

_NOTES = "verify: notes"
PART_CALL = Hook("torch.nn:Module", "__call__", _NOTES, "layers that no model has registered")
MODE_SET = Hook("torch.nn:Module", "train", _NOTES, "where a model was set to evaluation mode")
BATCH_SOURCE = Hook(LOADER, "__next__", _NOTES, "the data set of each batch")
DRAWING_FETCH = Hook(MAP_FETCHER, "fetch", _NOTES, "the random numbers that workers of a loader draw")
EPOCH_BEGIN = Hook(
    "torch.utils.data:DataLoader", "__iter__", _NOTES, "the order of the samples of each epoch"
)
BATCH_INDICES = Hook(LOADER, "_next_index", _NOTES, "the order of the samples of each epoch")
SCHEDULE_STEPS = tuple(
    Hook(f"torch.optim.lr_scheduler:{name}", "step", _NOTES, "whether it comes before the optimizer's")
    for name in ("LRScheduler", "SequentialLR", "ChainedScheduler", "CosineAnnealingWarmRestarts")
)
SCALER_STEP, SCALER_UNSCALE = (
    Hook("torch.amp.grad_scaler:GradScaler", name, _NOTES, "skipped steps, and gradients that are scaled")
    for name in ("step", "unscale_")
)
CLIPS = tuple(
    Hook(owner, name, _NOTES, "gradients that are clipped while they are scaled")
    for owner in ("torch.nn.utils", "torch.nn.utils.clip_grad")
    for name in ("clip_grad_norm_", "clip_grad_value_")
)
