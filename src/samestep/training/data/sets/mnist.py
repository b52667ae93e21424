"""MNIST: 60,000 + 10,000 handwritten digits, 28 x 28 grayscale.

Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
recognition", Proceedings of the IEEE 86(11), 1998.
"""

from samestep.training.data.idx import IdxDataSet
from samestep.training.data.published import PublishedFile

MNIST = IdxDataSet(
    name="mnist",
    files={
        "train": (
            PublishedFile(
                name="train-images-idx3-ubyte",
                suffix=".gz",
                sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                content_sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                content_bytes=16 + 60_000 * 28 * 28,
            ),
            PublishedFile(
                name="train-labels-idx1-ubyte",
                suffix=".gz",
                sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                content_sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                content_bytes=8 + 60_000,
            ),
        ),
        "test": (
            PublishedFile(
                name="t10k-images-idx3-ubyte",
                suffix=".gz",
                sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                content_sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                content_bytes=16 + 10_000 * 28 * 28,
            ),
            PublishedFile(
                name="t10k-labels-idx1-ubyte",
                suffix=".gz",
                sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                content_sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                content_bytes=8 + 10_000,
            ),
        ),
    },
    classes=tuple("0123456789"),
    mean=0.13066047627384286,
    std=0.3081078038564627,
    folders=("mnist", ".", "MNIST/raw", "raw"),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
)
