"""Fashion-MNIST: 60,000 + 10,000 articles of clothing, 28 x 28 grayscale, in the format of MNIST.

Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine
learning algorithms", 2017 (arXiv:1708.07747); MIT license.
"""

from samestep.training.data.idx import IdxDataSet
from samestep.training.data.published import PublishedFile

FASHION_MNIST = IdxDataSet(
    name="fashion-mnist",
    files={
        "train": (
            PublishedFile(
                name="train-images-idx3-ubyte",
                suffix=".gz",
                sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                content_sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                content_bytes=16 + 60_000 * 28 * 28,
            ),
            PublishedFile(
                name="train-labels-idx1-ubyte",
                suffix=".gz",
                sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                content_sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                content_bytes=8 + 60_000,
            ),
        ),
        "test": (
            PublishedFile(
                name="t10k-images-idx3-ubyte",
                suffix=".gz",
                sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                content_sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                content_bytes=16 + 10_000 * 28 * 28,
            ),
            PublishedFile(
                name="t10k-labels-idx1-ubyte",
                suffix=".gz",
                sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                content_sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                content_bytes=8 + 10_000,
            ),
        ),
    },
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    mean=0.2860405969887955,
    std=0.35302424451492254,
    folders=("fashion-mnist", ".", "FashionMNIST/raw", "raw"),
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
)
