"""Declares every attribute of torch, Python and other libraries that samestep replaces; see `registry`.

The constants are grouped by the feature that attaches them; those of `samestep verify` are in
`verify_declarations`, and functions of devices in `device_declarations`. `table.ALL` lists them for the
reference and the self-test.
"""

from samestep.hooks.registry import Hook

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

_COMMUNICATION = "step clock: communication"
COLLECTIVES = tuple(
    Hook("torch.distributed", name, _COMMUNICATION, "begin and end of a collective", optional=True)
    for name in (
        *(
            "all_gather",
            "all_gather_coalesced",
            "all_gather_into_tensor",
            "all_gather_object",
            "all_gather_single",
        ),
        *(
            "all_reduce",
            "all_reduce_coalesced",
            "all_to_all",
            "all_to_all_single",
            "barrier",
            "batch_isend_irecv",
        ),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "recv"),
        *("recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor"),
        *("scatter", "scatter_object_list", "send", "send_object_list"),
    )
)
AWAITED_SEND = Hook("torch.distributed", "send", "watchdog", "a rank waits for the receiver of its message")
AWAITED_RECV = Hook("torch.distributed", "recv", "watchdog", "a rank waits for the sender of a message")
ROOTED_COLLECTIVES = tuple(
    Hook("torch.distributed", name, "watchdog", "the ranks give different roots")
    for name in ("broadcast", "reduce", "gather", "scatter")
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
SHARED_MEMORY = tuple(
    Hook(
        "samestep.ranks.collectives.shared_memory:SharedMemory",
        name,
        _COMMUNICATION,
        "a collective in shared memory",
    )
    for name in ("agree", "all_gather", "all_reduce", "average", "barrier", "broadcast", "fold")
)
DIRECT_CONNECTIONS = tuple(
    Hook(
        "samestep.ranks.collectives.direct:DirectCollectives",
        name,
        _COMMUNICATION,
        "a collective by direct connections",
    )
    for name in ("all_gather", "all_reduce", "barrier")
)
SYNCHRONIZER_FINISH = Hook(
    "samestep.parallel.gradients.synchronizer:GradientSynchronizer",
    "finish",
    _COMMUNICATION,
    "gradients are averaged",
)

_SANITIZER = "sanitizer"
_GROUP = "a second process group is created with the script's"
SIDE_GROUP = Hook("torch.distributed.distributed_c10d", "init_process_group", _SANITIZER, _GROUP)
JOIN_BEGUN, JOIN_ENDED = (
    Hook("torch.distributed.algorithms.join:Join", name, _SANITIZER, "ranks have unequal numbers of steps")
    for name in ("__enter__", "__exit__")
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
BATCH_NORM = Hook(
    "torch.nn.modules.batchnorm:_BatchNorm",
    "forward",
    "serial scripts: split calls; verify",
    "statistics are of the whole batch",
)
ACTIVATION_CHECKPOINT = Hook(
    "torch.utils.checkpoint",
    "checkpoint",
    _SPLIT,
    "backward recomputes the same slice",
    arguments=("function",),
)
PADDED_SEQUENCE = Hook(
    "torch._VF",
    "_pad_packed_sequence",
    _SPLIT,
    "a slice is padded to the longest sequence of the batch",
)
PACKED_SEQUENCE = Hook(
    "torch.nn.utils.rnn",
    "_packed_sequence_init",
    _SPLIT,
    "random draws for the rows of packed sequences are those of the whole batch",
    arguments=("data", "batch_sizes", "sorted_indices", "unsorted_indices"),
)
AVERAGED_GRAD = Hook(
    "torch.autograd",
    "grad",
    _SPLIT,
    "gradients of parameters are averages over the ranks",
    arguments=("outputs", "inputs"),
)
FORWARD_BACKWARD = Hook("torch.autograd", "backward", _SPLIT, "a forward that trains is not split")
_ONCE = "serial scripts that run once"
RETAINING_BACKWARD = Hook(
    "torch.autograd", "backward", _ONCE, "whether the graphs of split calls are kept", arguments=("tensors",)
)
RETAINING_GRAD = Hook(
    "torch.autograd",
    "grad",
    _ONCE,
    "whether the graphs of split calls are kept",
    arguments=("outputs", "inputs"),
)
SET_HANDLER = Hook("signal", "signal", _ONCE, "the script's handlers run outside of exchanges with helpers")
GET_HANDLER = Hook("signal", "getsignal", _ONCE, "the script sees its own handler")
LOGGED = Hook(
    "logging:Logger", "callHandlers", _SPLIT, "calls computed for a comparison print and log nothing"
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
    "torch.autograd",
    "backward",
    _ALONE,
    "--explain ends after some backward passes",
    arguments=("tensors",),
)
CREATED_GROUP = tuple(
    Hook(owner, "init_process_group", _ALONE, "a script that creates a process group is refused")
    for owner in ("torch.distributed", "torch.distributed.distributed_c10d")
)
TORCH_MANUAL_SEEDS = tuple(
    Hook(owner, "manual_seed", "workers of a script that spawns them", "they get seeds that an import sets")
    for owner in ("torch", "torch.random")
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

SPAWNED_WORKERS = tuple(
    Hook("torch.multiprocessing", name, "workers of a script that spawns them", "samestep starts the workers")
    for name in ("spawn", "start_processes")
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
