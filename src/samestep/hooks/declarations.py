"""Declares every attribute of torch, Python and other libraries that samestep replaces; see `registry`.

The constants are grouped by the feature that attaches them. `ALL` lists them for the reference and the
self-test.
"""

from samestep.hooks.registry import Hook


def _each(owners: str, names: str, feature: str, reason: str, *, optional: bool = False) -> tuple[Hook, ...]:
    """Return the hook of each name of each owner; spaces separate them."""
    return tuple(
        Hook(owner, name, feature, reason, optional=optional)
        for owner in owners.split()
        for name in names.split()
    )


LOADER = "torch.utils.data.dataloader:_BaseDataLoaderIter"
FETCHER = "torch.utils.data._utils.fetch:_BaseDatasetFetcher"
MAP_FETCHER = "torch.utils.data._utils.fetch:_MapDatasetFetcher"

# --- what a running script does: step clock, watchdog, sanitizer ----------------------------------------

_EVENTS = "events of a script (clock, sanitizer, verify)"
MODULE_CALL = Hook("torch.nn:Module", "__call__", _EVENTS, "a top-level forward begins and ends")
TENSOR_BACKWARD = Hook(
    "torch:Tensor", "backward", _EVENTS, "a backward begins and ends, gradient all-reduce included"
)
AUTOGRAD_BACKWARD = Hook(
    "torch.autograd", "backward", _EVENTS, "a backward begins and ends", arguments=("tensors",)
)
NEXT_BATCH = Hook(LOADER, "__next__", _EVENTS, "the script waits for a batch")

_CLOCK = "step clock"
LOADED_INDEX = Hook(LOADER, "_next_index", _CLOCK, "the number of samples of each batch")
LOADED_RESET = Hook(LOADER, "_reset", _CLOCK, "an epoch of a loader begins")
LOADED_BATCH = Hook(LOADER, "__next__", _CLOCK, "a batch with a known number of samples is delivered")
NEW_OPTIMIZER = Hook(
    "torch.optim:Optimizer",
    "__init__",
    "step clock, verify",
    "which parameters are trained",
    arguments=("self", "params"),
)
NEW_PASS = Hook("torch.utils.data:DataLoader", "__iter__", _CLOCK, "which loaders the script reads")
MOVED = Hook("torch:Tensor", "to", _CLOCK, "a batch is copied to the accelerator")
MOVED_TO_CUDA = Hook("torch:Tensor", "cuda", _CLOCK, "a batch is copied to the accelerator", optional=True)
COMPILE = Hook("torch", "compile", _CLOCK, "the methods of the clock are excluded from compilation")
WRITTEN_ERROR = Hook("sys:stderr", "write", _CLOCK, "its last line explains a bare exit code", optional=True)

_COMMUNICATION = "step clock: communication"
COLLECTIVES = _each(
    "torch.distributed",
    "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_gather_single all_reduce "
    "all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast "
    "broadcast_object_list gather gather_object monitored_barrier recv recv_object_list reduce "
    "reduce_scatter reduce_scatter_single reduce_scatter_tensor scatter scatter_object_list send "
    "send_object_list",
    _COMMUNICATION,
    "begin and end of a collective",
    optional=True,
)
AWAITED_SEND = Hook("torch.distributed", "send", "watchdog", "a rank waits for the receiver of its message")
AWAITED_RECV = Hook("torch.distributed", "recv", "watchdog", "a rank waits for the sender of a message")
ROOTED_COLLECTIVES = _each(
    "torch.distributed", "broadcast reduce gather scatter", "watchdog", "the ranks give different roots"
)
BROADCAST_BUFFERS = Hook(
    "torch.distributed",
    "_broadcast_coalesced",
    _COMMUNICATION,
    "DistributedDataParallel broadcasts its buffers",
)
WORK_WAIT = Hook(
    "torch.distributed.distributed_c10d:Work", "wait", _COMMUNICATION, "a rank waits for a collective"
)
FUTURE_WAIT = Hook("torch.futures:Future", "wait", _COMMUNICATION, "a rank waits for a collective")

_SANITIZER = "sanitizer"
_GROUP = "a second process group is created with the script's"
SIDE_GROUP = Hook("torch.distributed.distributed_c10d", "init_process_group", _SANITIZER, _GROUP)
JOIN_BEGUN, JOIN_ENDED = _each(
    "torch.distributed.algorithms.join:Join",
    "__enter__ __exit__",
    _SANITIZER,
    "ranks have unequal numbers of steps",
)
SIDE_GROUP_PUBLIC = Hook("torch.distributed", "init_process_group", _SANITIZER, _GROUP)

# --- gradient synchronization and process groups ----------------------------------------------------------

SYNCHRONIZED_BACKWARD = Hook(
    "torch.autograd",
    "backward",
    "gradient synchronization",
    "gradients are averaged at the end of a backward",
    order=-1,
)

_ONE_JOB = "process groups of one job"
ENV_STORE = Hook(
    "torch.distributed.rendezvous",
    "_create_c10d_store",
    _ONE_JOB,
    "the store answers only processes with the job's secret",
    arguments=("hostname", "port", "rank", "world_size", "timeout"),
)
GLOO_GROUP = Hook(
    "torch.distributed.distributed_c10d", "ProcessGroupGloo", _ONE_JOB, "each connection is authenticated"
)
NEW_REDUCER = Hook(
    "torch.nn.parallel:DistributedDataParallel",
    "_ddp_init_helper",
    "native scripts",
    "the process group outlives the reducer, whose destructor would wait for it for ever",
    optional=True,
)
PACK_OBJECT = Hook(
    "torch.distributed.distributed_c10d",
    "_object_to_tensor",
    _ONE_JOB,
    "a pickle gets an HMAC",
    arguments=("obj", "device", "group"),
)
UNPACK_OBJECT = Hook(
    "torch.distributed.distributed_c10d",
    "_tensor_to_object",
    _ONE_JOB,
    "the HMAC of a pickle is checked before it is loaded",
    arguments=("tensor", "tensor_size", "group"),
)

# --- serial scripts on several workers -------------------------------------------------------------------

_SPLIT = "serial scripts: split calls"
SPLIT_CALL = Hook("torch.nn:Module", "__call__", _SPLIT, "a top-level forward is split across ranks")
TENSOR_HOOK = Hook("torch:Tensor", "register_hook", _SPLIT, "a hook within a split call would get a slice")
RETAINED_GRAD = Hook(
    "torch:Tensor", "retain_grad", _SPLIT, "a gradient within a split call would be of a slice"
)
STATE_READ = Hook(
    "torch.nn:Module", "state_dict", _SPLIT, "another thread gets no weights that a check has disturbed"
)
FUNCTIONAL_CALL = Hook(
    "torch.nn.utils.stateless",
    "_functional_call",
    _SPLIT,
    "a call that gets its weights from elsewhere is not split",
)
DROPPED_CASTS = Hook(
    "torch", "clear_autocast_cache", _SPLIT, "the weights that autocast has cast are cast again after a block"
)
FILE_OF_ARCHIVE = Hook(
    "torch.serialization:_open_zipfile_writer_file",
    "__init__",
    _SPLIT,
    "a module that writes files by `torch.save` is not split: Python does not announce them",
    arguments=("self", "name"),
)
FILE_OF_TENSORS = Hook(
    "safetensors.torch",
    "serialize_file",
    _SPLIT,
    "the same for `save_file` of safetensors",
    arguments=("tensor_dict", "filename"),
)
BATCH_NORM = Hook(
    "torch.nn.functional",
    "batch_norm",
    "serial scripts: split calls; verify",
    "statistics are of the whole batch",
    arguments=("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
)
BATCH_NORM_BELOW = Hook(
    "torch",
    "batch_norm",
    _SPLIT,
    "statistics are of the whole batch, also where a script has kept torch's function",
)
_RECOMPUTED = "backward recomputes the same slice"
ACTIVATION_CHECKPOINT = Hook(
    "torch.utils.checkpoint", "checkpoint", _SPLIT, _RECOMPUTED, arguments=("function",)
)
REENTRANT_CHECKPOINT = Hook(
    "torch.utils.checkpoint:CheckpointFunction",
    "forward",
    _SPLIT,
    _RECOMPUTED,
    arguments=("ctx", "run_function"),
)
RECOMPUTING_CHECKPOINTS = _each(
    "torch.utils.checkpoint",
    "_checkpoint_without_reentrant_generator _checkpoint_without_reentrant_generator_impl",
    _SPLIT,
    _RECOMPUTED,
    optional=True,
)
PADDED_SEQUENCE = Hook(
    "torch._VF", "_pad_packed_sequence", _SPLIT, "a slice is padded to the longest sequence of the batch"
)
ALIGNED_MASK = Hook(
    "torch",
    "_nested_tensor_from_mask_left_aligned",
    _SPLIT,
    "a transformer drops padding from a slice if it can from the whole batch",
)
_SCRIPTED = "TorchScript compiles the original of a replaced function"
SCRIPTED_FUNCTION = Hook(
    "torch.jit._recursive", "try_compile_fn", _SPLIT, _SCRIPTED, arguments=("fn", "loc"), optional=True
)
SCRIPTED_BUILTIN = Hook("torch.jit._builtins", "_find_builtin", _SPLIT, _SCRIPTED, optional=True)
COMPILED_FUNCTION = Hook(
    "torch._dynamo.trace_rules",
    "load_object",
    _SPLIT,
    "torch.compile traces a replaced function, and does not take it for the original, which it knows",
    arguments=("name",),
    optional=True,
)
OVERRIDDEN = Hook(
    "torch.overrides",
    "has_torch_function",
    _SPLIT,
    "a transformer computes in its fast way though reads of its samples are guarded",
)
PACKED_SEQUENCE = Hook(
    "torch.nn.utils.rnn",
    "_packed_sequence_init",
    _SPLIT,
    "random draws for the rows of packed sequences are those of the whole batch",
    arguments=("data", "batch_sizes", "sorted_indices", "unsorted_indices"),
)
AVERAGED_GRAD = Hook(
    "torch.autograd", "_engine_run_backward", _SPLIT, "gradients of parameters are averages over the ranks"
)
FORWARD_BACKWARD = Hook("torch.autograd", "backward", _SPLIT, "a forward that trains is not split")
_ONCE = "serial scripts that run once"
_OPERAND = "the gradient of an output of a split call includes that by outputs computed from it"
_OPERANDS = "serial scripts that run once: gradients of results"
ENGINE_OF_OPERAND = Hook("torch.autograd", "_engine_run_backward", _OPERANDS, _OPERAND)
HOOK_ON_OPERAND = Hook("torch:Tensor", "register_hook", _OPERANDS, _OPERAND)
RETAINED_OF_OPERAND = Hook("torch:Tensor", "retain_grad", _OPERANDS, _OPERAND)
SET_HANDLER = Hook("signal", "signal", _ONCE, "the script's handlers run outside of exchanges with helpers")
GET_HANDLER = Hook("signal", "getsignal", _ONCE, "the script sees its own handler")
LOGGED = Hook(
    "logging:Logger", "callHandlers", _SPLIT, "calls computed for a comparison print and log nothing"
)
LOGGED_ONCE = _each(
    "logging:Logger",
    "warning_once info_once",
    _SPLIT,
    "the script's call logs what is logged once",
    optional=True,
)
PARAMETRIZATION_CACHE = Hook(
    "torch.nn.utils.parametrize",
    "_cache_enabled",
    _SPLIT,
    "an equivalence check computes parametrized weights again",
)


WORKER_INFO = Hook(
    "torch.utils.data._utils.worker",
    "_worker_info",
    "streams of samples",
    "a stream is read as by a single process",
)

_ALONE = "serial scripts: the script sees one process"
COUNTED_BACKWARD = Hook(
    "torch.autograd", "backward", _ALONE, "--explain ends after some backward passes", arguments=("tensors",)
)
CREATED_GROUP = _each(
    "torch.distributed torch.distributed.distributed_c10d",
    "init_process_group",
    _ALONE,
    "a script that creates a process group is refused",
)
_SPAWNED = "workers of a script that spawns them"
TORCH_MANUAL_SEEDS = _each(
    "torch torch.random", "manual_seed", _SPAWNED, "they get seeds that an import sets"
)
GROUP_EXISTS = Hook(
    "torch.distributed", "is_initialized", _ALONE, "the script does not see the ranks' process group"
)

_SEEDS = "verify: seeds from the system are equal in all runs"
RANDOM_OBJECT_SEED = Hook("random:Random", "seed", _ALONE, _SEEDS, arguments=("self", "a", "version"))
RANDOM_SEED = Hook("random", "seed", _ALONE, _SEEDS, arguments=("a", "version"))
NUMPY_SEED = Hook("numpy.random", "seed", _ALONE, _SEEDS)
NUMPY_GENERATOR = Hook("numpy.random", "default_rng", _ALONE, _SEEDS)
TORCH_SEED = Hook("torch", "seed", _ALONE, _SEEDS)
TORCH_RANDOM_SEED = Hook("torch.random", "seed", _ALONE, _SEEDS)


# --- launching -------------------------------------------------------------------------------------------

SPAWNED_WORKERS = _each(
    "torch.multiprocessing", "spawn start_processes", _SPAWNED, "samestep starts the workers"
)
STARTED_BY_HAND = Hook(
    "multiprocessing.process:BaseProcess",
    "start",
    "workers of a script that starts them by hand",
    "samestep starts the workers",
)
PARENTS_CHILDREN = Hook(
    "multiprocessing.process",
    "_children",
    "workers forked from a notebook",
    "a worker does not end its parent's processes",
)


def file_function(owner: str, name: str) -> Hook:
    """Return the hook of a class's method through which a script reaches files."""
    return Hook(
        owner, name, "serial scripts: files", "every rank sees the files of the serial script", optional=True
    )


# --- devices ---------------------------------------------------------------------------------------------
_CUDA = "--device cpu"
_ON_CPU = "a script that names CUDA devices runs on the CPU"
TORCH_LOAD = Hook("torch", "load", _CUDA, _ON_CPU, arguments=("f", "map_location"))
TORCH_GENERATOR = Hook("torch", "Generator", _CUDA, _ON_CPU)
RECORD_STREAM = Hook("torch:Tensor", "record_stream", _CUDA, _ON_CPU)
DEFAULT_TENSOR_TYPE = Hook("torch", "set_default_tensor_type", _CUDA, _ON_CPU, optional=True)
DEVICE_MODULE = Hook(
    "torch", "get_device_module", _CUDA, "torch.cuda has stand-ins, torch.cpu none", optional=True
)
CUDA_TYPES = tuple(
    Hook("torch.cuda", f"{kind}Tensor", _CUDA, _ON_CPU)
    for kind in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
)
DEVICE_ANSWERS = tuple(
    Hook(owner, name, _CUDA, "the script sees one GPU, libraries see none")
    for owner, name in (
        ("torch.cuda", "is_available"),
        ("torch.cuda", "device_count"),
        ("torch.accelerator", "is_available"),
        ("torch.accelerator", "device_count"),
        ("torch.accelerator", "current_accelerator"),
    )
)

_GLOO = "native scripts: --device cpu"
GLOO_GROUPS = _each(
    "torch.distributed torch.distributed.distributed_c10d",
    "init_process_group new_group",
    _GLOO,
    "Gloo replaces NCCL",
)
DEVICES_OF_BARRIER = Hook(
    "torch.distributed",
    "barrier",
    _GLOO,
    "Gloo takes no devices",
    arguments=("group", "async_op", "device_ids"),
)
DEVICES_OF_DDP = Hook(
    "torch.nn.parallel:DistributedDataParallel",
    "__init__",
    _GLOO,
    "a model on the CPU has no device_ids",
    arguments=("self", "module", "device_ids", "output_device"),
)
SYNCHRONIZED_NORM = Hook(
    "torch.nn:SyncBatchNorm", "forward", _GLOO, "torch computes it on GPUs only", arguments=("self", "input")
)
NORMS_OF_DDP = Hook(
    "torch.nn.parallel:DistributedDataParallel",
    "_passing_sync_batchnorm_handle",
    _GLOO,
    "torch refuses SyncBatchNorm on the CPU",
)


def cuda_function(name: str) -> Hook:
    """Return the hook of a function or class of ``torch.cuda`` that ``--device cpu`` replaces."""
    return Hook("torch.cuda", name, _CUDA, _ON_CPU, optional=True)


def nvtx_function(name: str) -> Hook:
    """Return the hook of a function of ``torch.cuda.nvtx`` that ``--device cpu`` replaces."""
    return Hook("torch.cuda.nvtx", name, _CUDA, _ON_CPU, optional=True)


def accelerator_function(name: str) -> Hook:
    """Return the hook of a function of ``torch.accelerator`` that ``--device cpu`` replaces."""
    return Hook("torch.accelerator", name, _CUDA, _ON_CPU, optional=True)


# --- verify ----------------------------------------------------------------------------------------------
_VERIFY = "verify"
SHUFFLED = Hook("torch.utils.data:DistributedSampler", "__iter__", _VERIFY, "the epoch that it shuffles")
RECORDED_CALL = Hook(
    "torch.nn:Module", "__call__", _VERIFY, "inputs and outputs of all modules in a step that differs"
)
PROBED_FETCH = Hook(FETCHER, "fetch", _VERIFY, "whether loading a sample draws random numbers")
DELIVERED_BATCH = Hook(
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
BACKWARD_ENGINE = Hook(
    "torch.autograd",
    "_engine_run_backward",
    _VERIFY,
    "and so is what a backward computes again",
    optional=True,
)
DROPOUTS = _each(
    "torch.nn.functional",
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout",
    _VERIFY,
    "dropout is disabled in the run without random features",
)
ATTENTION = Hook(
    "torch.nn.functional",
    "scaled_dot_product_attention",
    _VERIFY,
    "its dropout is disabled in the run without random features",
    arguments=("query", "key", "value", "attn_mask", "dropout_p"),
)
_CLIPPING = "torch.nn.utils torch.nn.utils.clip_grad"
NORM_CLIPS = _each(_CLIPPING, "clip_grad_norm_", _VERIFY, "the norm of gradients before they are clipped")
GROUP_OF_NORM = Hook(
    "torch.nn:SyncBatchNorm", "__init__", _VERIFY, "batch norm over all ranks in place of those of a group"
)
REDUCTIONS = _each(
    "torch.distributed",
    "all_reduce reduce",
    _VERIFY,
    "numbers that the ranks combine in an evaluation, and tensors that they combine in a forward",
)
GATHERS = _each(
    "torch.distributed",
    "all_gather all_gather_into_tensor all_gather_object gather gather_object all_to_all all_to_all_single "
    "reduce_scatter reduce_scatter_tensor",
    _VERIFY,
    "whether the ranks gather results in an evaluation, and tensors that they exchange in a forward",
)

_NOTES = "verify: notes"
PART_CALL = Hook("torch.nn:Module", "__call__", _NOTES, "layers that no model has registered")
MODE_SET = Hook("torch.nn:Module", "train", _NOTES, "where a model was set to evaluation mode")
BATCH_SOURCE = Hook(LOADER, "__next__", _NOTES, "the data set of each batch")
NOTED_FETCH = Hook(
    MAP_FETCHER,
    "fetch",
    _NOTES,
    "random numbers that a loader's workers draw, and samples that it does not deliver",
)
EPOCH_BEGIN = Hook(
    "torch.utils.data:DataLoader", "__iter__", _NOTES, "the order of the samples of each epoch"
)
BATCH_INDICES = Hook(LOADER, "_next_index", _NOTES, "the order of the samples of each epoch")
SCHEDULE_STEPS = tuple(
    Hook(f"torch.optim.lr_scheduler:{name}", "step", _NOTES, "whether it comes before the optimizer's")
    for name in ("LRScheduler", "SequentialLR", "ChainedScheduler", "CosineAnnealingWarmRestarts")
)
SCALER_STEP, SCALER_UNSCALE = _each(
    "torch.amp.grad_scaler:GradScaler",
    "step unscale_",
    _NOTES,
    "skipped steps, and gradients that are scaled",
)
THREADS_SET = Hook(
    "torch", "set_num_threads", _NOTES, "threads of each rank, of which the node may have too many"
)
SAVED_STATE = Hook("torch", "save", _NOTES, "parameters that a saved state lacks", arguments=("obj",))
LOADED_STATE = Hook(
    "torch.nn:Module",
    "load_state_dict",
    _NOTES,
    "parameters that a loaded state lacks",
    arguments=("self", "state_dict"),
)
CLIPS = _each(
    _CLIPPING, "clip_grad_norm_ clip_grad_value_", _NOTES, "gradients that are clipped while they are scaled"
)


ALL = tuple(
    hook
    for value in [*globals().values()]
    for hook in (value if isinstance(value, tuple) else (value,))
    if isinstance(hook, Hook)
)
