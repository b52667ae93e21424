"""The networks have the published sizes and shapes, and the usual names of weights."""

import pytest
import torch
from torch import nn

from samestep.base.errors import UsageError
from samestep.training.networks import MODELS, ResNet, ResNet9, build

IMAGENET = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("depth", "parameters"), IMAGENET.items())
def test_a_resnet_has_the_published_number_of_parameters(depth, parameters):
    with torch.device("meta"):
        assert count(ResNet(depth)) == parameters


def test_keys_equal_those_of_published_weights():
    with torch.device("meta"):
        keys = set(ResNet(50).state_dict())
    assert {
        "conv1.weight",
        "bn1.running_mean",
        "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.bias",
        "layer3.5.conv3.weight",
        "layer4.2.bn3.num_batches_tracked",
        "fc.bias",
    } <= keys
    assert len(keys) == 320


@pytest.mark.parametrize(("name", "depth"), [("resnet18", 18), ("resnet34", 34), ("resnet50", 50)])
@pytest.mark.parametrize("side", [32, 64])
def test_the_first_layers_reduce_large_images_only(name, depth, side):
    with torch.device("meta"):
        model = build(name, shape=(3, side, side), classes=7)
        sizes = []
        model.layer1.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.shape[2]))
        scores = model(torch.empty(2, 3, side, side))
    assert scores.shape == (2, 7)
    assert sizes == [32 if side == 32 else 16]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_every_model_accepts_images_of_1_and_3_channels(name, shape):
    with torch.device("meta"):
        assert build(name, shape=shape, classes=5)(torch.empty(4, *shape)).shape == (4, 5)


def test_the_width_of_resnet9_can_be_given():
    with torch.device("meta"):
        assert count(ResNet9()) == count(build("resnet9", shape=(3, 32, 32), classes=10)) == 6_573_120
        assert count(build("resnet9:16", shape=(3, 32, 32), classes=10)) < count(ResNet9()) / 12


def test_a_bottleneck_is_strided_in_its_3x3_convolution():
    with torch.device("meta"):
        block = ResNet(50).layer2[0]
    assert [layer.stride for layer in (block.conv1, block.conv2, block.conv3)] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("name", ["resnet7", "resnet9:0", "resnet9:x", "resnet18:32", "", "ConvNet"])
def test_an_unknown_model_is_refused_with_the_known_ones(name):
    with pytest.raises(UsageError, match=r"no model .*convnet, resnet9, resnet18"):
        build(name, shape=(3, 32, 32), classes=10)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("convnet", (3, 30, 30), "30 x 30"),
        ("convnet", (3, 32, 28), "32 x 28"),
        ("resnet9", (1, 6, 6), "resnet9 .* 6 x 6"),
    ],
)
def test_images_of_an_unsupported_size_are_refused(name, shape, message):
    with pytest.raises(UsageError, match=message):
        build(name, shape=shape, classes=10)
