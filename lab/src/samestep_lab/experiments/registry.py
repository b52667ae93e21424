"""Lists the experiments by name, with their questions, expected results and reasons; needs no torch."""

from collections.abc import Mapping

from samestep.base.errors import UsageError
from samestep_lab.experiments.experiment import Experiment

_ALL = (
    Experiment(
        name="hello",
        question="How does rank 0 reach the others, and how is each rank identified?",
        does="Rank 0 sends a tensor of zeros to every other rank, which receives it into a tensor of ones.",
        expect="Every rank holds zeros afterwards, and reports the variables that gave it its rank.",
        why=(
            "A launcher starts the same program N times, and only environment variables differ. A receive "
            "overwrites the tensor that it is given, and waits for the send that it belongs to."
        ),
        workers=4,
        least=2,
    ),
    Experiment(
        name="one-parameter",
        question="Are gradients summed or averaged, and what does it change?",
        does=(
            "A model of one parameter, 2, learns from one input per rank, the rank itself; the loss is the "
            "squared difference, and the learning rate 0.1."
        ),
        expect="On 2 ranks the gradients are 4 and 2: their sum 6 gives 1.4, their mean 3 gives 1.7.",
        why=(
            "The mean of the ranks' gradients is the gradient of the mean loss over all samples, which a "
            "serial step has; the sum is N times as large, as if the learning rate were. "
            "DistributedDataParallel and samestep average. The exercises (tutorial 001) have 1.4, by a sum."
        ),
    ),
    Experiment(
        name="collectives",
        question="Which messages make up each collective?",
        does="It traces the schedule of each collective, and runs the all-reduces on integers.",
        expect=(
            "Naive algorithms take N-1 rounds for each half, trees log2 N, and rings N-1 with chunks of 1/N."
        ),
        why=(
            "Rank 0 of a naive algorithm handles one message after the other; on a tree, ranks that have the "
            "data pass it on at the same time; on a ring every link is busy in every round."
        ),
        workers=4,
        least=2,
    ),
    Experiment(
        name="ring",
        question="What does a ring all-reduce save, and does the ring of the exercises save it?",
        does="It counts bytes, compares bits and measures times of three all-reduces of the same numbers.",
        expect=(
            "A ring of chunks sends 2(N-1)/N times the tensor from each rank; one of whole tensors 2(N-1) "
            "times, and from 3 ranks on its ranks end with different bits."
        ),
        why=(
            "Each rank of a ring of chunks adds up one part of the tensor, once for all. With whole tensors "
            "each rank adds all of them up itself, in an order of its own, and floating-point sums depend on "
            "the order. The ring of the exercises (tutorial 001) forwards whole tensors."
        ),
        workers=3,
        least=2,
    ),
    Experiment(
        name="who-sees-what",
        question="Which samples does each rank see, and do they move between ranks?",
        does="It draws the integers 0 to 7 in batches for 2 epochs, with each sampler.",
        expect=(
            "Without set_epoch every epoch repeats the order of the first; with it, samples change the rank."
        ),
        why=(
            "DistributedSampler shuffles all samples with a seed of seed + epoch, and each rank takes every "
            "N-th: shuffling is across ranks. It pads to equal numbers, and repeats samples for that."
        ),
    ),
    Experiment(
        name="shuffling",
        question="Is a new order of the samples in each epoch worth accuracy?",
        does="It trains with and without set_epoch, from the same weights, with several seeds.",
        expect=(
            "The article (tutorial 002) reports 1 to 4 points more with a new order, from five runs of each; "
            "on small data the difference can be below the spread between seeds."
        ),
        why=(
            "With one order, the same samples are always together in a batch. Accuracy also differs between "
            "seeds, so that a difference of single runs shows nothing: only an interval without 0 does."
        ),
        trains=True,
    ),
    Experiment(
        name="padding",
        question="How much does a padded evaluation change the accuracy?",
        does="It evaluates one set of weights with DistributedSampler and without padding.",
        expect="10,000 samples become 10,002 on 3 workers; the exact evaluation is the one of one worker.",
        why=(
            "DistributedSampler repeats samples until every rank has equally many, and those count twice. "
            "The article (tutorial 002) shows 10,002 samples and 70.1260 % in place of 70.12 %."
        ),
        trains=True,
    ),
    Experiment(
        name="batch-size",
        question="What happens to the training when each worker keeps its batch size?",
        does=(
            "It trains with the global batch kept, and with a batch per worker and each rule for the rate, "
            "on equally many samples."
        ),
        expect=(
            "A batch per worker takes about 1/N of the steps; a scaled rate is meant to restore the accuracy."
        ),
        why=(
            "N times the batch is another training: fewer, less noisy steps. The linear rule makes each step "
            "longer, which need not compensate in a short training. With the global batch kept, the steps "
            "are those of one worker up to rounding, which samestep verify checks."
        ),
        trains=True,
    ),
    Experiment(
        name="synchronizers",
        question="Which way to synchronize gradients costs least?",
        does="It measures steps with each gradient synchronizer, interleaved, and without communication.",
        expect="One all-reduce per parameter costs most; buckets, and shared memory on one host, cost least.",
        why=(
            "Each message has a fixed cost, which buckets pay once for many gradients, and a bucket is sent "
            "while backward still computes."
        ),
        least=2,
    ),
    Experiment(
        name="under-the-hood",
        question="What does DistributedDataParallel do in a step?",
        does="It records when each bucket of gradients was ready, sent and done in one step.",
        expect="Buckets of the last layers are sent while backward computes the first layers.",
        why=(
            "Backward computes gradients from the last layer to the first. Only what is still under way when "
            "backward has computed the last gradient makes the step longer. On CPUs, communication uses "
            "the cores that compute, so that hidden time is not free."
        ),
        least=2,
    ),
    Experiment(
        name="precision",
        question="What do lower precisions change in accuracy and speed?",
        does="It trains in fp32, bf16, fp16 with loss scaling, bf16-true and fp16-true, with several seeds.",
        expect="Equal accuracy within the spread; faster only on hardware with units for 16 bits.",
        why=(
            "Mixed precision keeps float32 weights, and fp16 scales the loss so that small gradients do not "
            "become 0. A CPU without units for 16 bits can be far slower in them. In a short "
            "training of a small network, weights of 16 bits can do as well. "
            "The MNIST tutorial (004) uses Apex and its level O2."
        ),
        trains=True,
    ),
    Experiment(
        name="serial-first",
        question="What is faster before any parallelism?",
        does="It measures steps of one worker with each change, interleaved, and two data paths.",
        expect="It depends on the hardware: 16 bits and channels_last need units that use them.",
        why=(
            "Another worker multiplies what one worker reaches. The course (tutorial 000) names reduced "
            "precision, torch.compile and the data path as what comes first."
        ),
        workers=1,
        most=1,
        trains=True,
    ),
    Experiment(
        name="threads",
        question="How many compute threads does each rank need?",
        does="It measures steps with several numbers of threads per rank, interleaved.",
        expect="The cores divided by the ranks is the fastest or close; more threads can be slower by far.",
        why=(
            "Threads beyond the cores wait for each other, while the system lets others run. torchrun sets "
            "one thread for each rank unless OMP_NUM_THREADS is set; without a launcher, each rank would "
            "start a thread for every core."
        ),
    ),
    Experiment(
        name="backends",
        question="Which communication back end does what, and which one applies here?",
        does="It inspects this machine, and lists the back ends by device and network.",
        expect="NCCL for NVIDIA GPUs, XCCL for Intel's, Gloo for CPUs, MPI without IP over InfiniBand.",
        why=(
            "NCCL uses NVLink and GPU memory directly, and needs GPUs; Gloo needs IP addresses; MPI needs a "
            "torch that was built with it. The rule is that of the course (tutorial 000)."
        ),
    ),
    Experiment(
        name="checkpoint",
        question="Which checkpoints load into which models?",
        does="It saves the weights of bare, wrapped and compiled models, and loads each into the others.",
        expect="load_state_dict refuses other prefixes; samestep.load_weights removes them.",
        why=(
            "A wrapper holds the model as its attribute, and so its keys begin with module. or _orig_mod. "
            "Saving model.module.state_dict() avoids it."
        ),
    ),
    Experiment(
        name="algorithms",
        question="Which all-reduce is the fastest at which size?",
        does="It measures every all-reduce at four sizes, interleaved, after a check of its results.",
        expect="Few messages for small tensors, few bytes for large ones; shared memory within a host.",
        why=(
            "A message costs a fixed time and a time per byte. NCCL makes that choice itself; for its "
            "exercise (tutorial 000): NCCL_ALGO=Ring samestep bench all-reduce -n 8, and "
            "the same with Tree."
        ),
        least=2,
    ),
    Experiment(
        name="restart",
        question="What happens when a worker is killed in the middle of a training?",
        does="It trains twice, and kills a worker of the second training after its first checkpoint.",
        expect="All workers start again, resume from the last checkpoint, and end with the same weights.",
        why=(
            "The other ranks cannot go on without the gradients of the killed one, so all restart. A "
            "checkpoint holds the place in the order of the samples too, and so no step is lost or repeated. "
            "With srun alone, a new job has to resume from the checkpoint."
        ),
        trains=True,
    ),
    Experiment(
        name="launchers",
        question="Is a training slower under one launcher than under another?",
        does="It runs the same training under each launcher that works here, by samestep scale --compare.",
        expect="Equal speed within the interval, if the workers have equal threads and cores.",
        why=(
            "A launcher sets variables and ends; it takes no part in a step. The course (tutorial 000) saw "
            "torchrun 5 to 25 % slower without a known cause. Threads and cores differ: torchrun sets "
            "OMP_NUM_THREADS to 1, and srun binds each task to its cores. The page about launchers has more."
        ),
        trains=True,
    ),
    Experiment(
        name="strong-scaling",
        question="How much faster are more workers at the same global batch?",
        does=(
            "It measures steps on 1, 2, 4 ... workers, and on one worker with the threads of several, with "
            "samestep scale, several runs of each."
        ),
        expect=(
            "A speedup below the number of workers, none with more workers than cores, and less than 1 where "
            "a step is too small to be split. It is over the fastest worker with at most as many threads."
        ),
        why=(
            "Each worker computes a smaller part of the batch, while communication and fixed costs stay. "
            "samestep scale with --out writes the page with plots and causes; on GPUs, give -n 1,2,4,8."
        ),
        trains=True,
    ),
)

EXPERIMENTS: Mapping[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
"""The experiments by name."""


def check_workers(experiment: Experiment, workers: int) -> None:
    """Refuse a number of ranks that the experiment cannot use.

    Raises:
        UsageError: it is too small or too large.
    """
    if workers < experiment.least:
        raise UsageError(f"-n {workers}: {experiment.name} needs {experiment.least} workers or more.")
    if workers > experiment.most:
        raise UsageError(f"-n {workers}: {experiment.name} needs {experiment.most} workers or fewer.")
