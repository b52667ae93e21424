"""Scripts change layers, modes and generators between calls, and get what `python` gives."""

import gc
import logging
import os
import random
import sys
import types
import warnings
import weakref
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.modules import module as torch_modules


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Net(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(nn.Linear(4, 5), *layers)
        for number, parameter in enumerate(self.parameters()):
            parameter.data = drawn(*parameter.shape, seed=number)


def gradients(model, calls=2, context=nullcontext):
    """Call a model; return sums of its outputs and gradients."""
    found = []
    for number in range(calls):
        with context():
            outputs = model(drawn(12, 4, seed=number))
        model.zero_grad()
        outputs.square().sum().backward()
        found += [outputs.sum().item(), outputs[0].sum().item(), model[0].weight.grad.sum().item()]
    return found


def a_dimension_of_a_layer():
    """A softmax over the batch compares samples."""
    model = Net(nn.Softmax(1))
    first = gradients(model)
    model[1].dim = 0
    return [*first, *gradients(model)]


def forward_of_a_layer():
    model = Net()
    first = gradients(model)
    model[0].forward = types.MethodType(lambda layer, x: x @ layer.weight.t() + 7, model[0])
    return [*first, *gradients(model)]


def ended_models():
    """The forward of a layer refers to the model, which ends with the last reference of the script."""
    found = []
    for _ in range(3):
        model = Net()
        model[0].forward = types.MethodType(lambda net, x: x @ net[0].weight.t(), model)
        found += gradients(model)
        ended = weakref.ref(model)
        del model
        gc.collect()
        found.append(float(ended() is None))
    return found


def a_layout_of_weights():
    """Outputs have the layout of the weights, which `view` of a script depends on."""
    model, x, found = nn.Conv2d(3, 4, 3, bias=False).double(), drawn(12, 3, 5, 5), []
    model.weight.data = drawn(4, 3, 3, 3)
    for layout in (torch.contiguous_format, torch.channels_last) * 2:
        model.to(memory_format=layout)
        found += [float(stride) for stride in model(x).stride()]
    return found


GENERATORS = {
    "torch": lambda: torch.Generator().manual_seed(3),
    "numpy": lambda: np.random.default_rng(3),
    "python": lambda: random.Random(3),
}


class Scaled(Net):
    def forward(self, x, generator):
        number = (
            torch.rand(1, generator=generator).item()
            if isinstance(generator, torch.Generator)
            else generator.random()
        )
        return super().forward(x) * number


def numbers_of_a_generator(kind):
    generator, model = GENERATORS[kind](), Scaled()
    return [model(drawn(12, 4, seed=number), generator).sum().item() for number in range(3)]


class OwnGenerator(Net):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return super().forward(x) + torch.rand(5, generator=self.generator)


def numbers_drawn_between_calls():
    """The text of a long tensor leaves out most of the state."""
    model = OwnGenerator()
    found = gradients(model)
    for _ in range(3):
        found += [torch.rand(1, generator=model.generator).item(), *gradients(model, calls=1)]
    return found


def backward_hooks_on_all_modules():
    model, rows = Net(nn.ReLU()), []
    found = gradients(model)
    handle = torch_modules.register_module_full_backward_hook(
        lambda _, __, of_outputs: rows.append(float(len(of_outputs[0])))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inputs without gradients
        found += gradients(model)
    handle.remove()
    return [*found, *rows]


def disabled_hooks():
    def disabled():
        return torch.autograd.graph.disable_saved_tensors_hooks("a test")

    return gradients(Net(nn.ReLU()), context=disabled)


def hooks_on_saved_tensors():
    """The script's hooks round what a backward needs, and see its sizes."""
    sizes = []

    def rounded(tensor):
        sizes.append(float(tensor.numel()))
        return tensor.float()

    def context():
        return torch.autograd.graph.saved_tensors_hooks(rounded, lambda tensor: tensor.double())

    model = Net(nn.Tanh())
    return [*gradients(model), *gradients(model, context=context), *sizes]


def batched_gradients():
    model, x = Net(nn.Tanh()), drawn(12, 4).requires_grad_()
    found = gradients(model)
    for _ in range(2):
        outputs = model(x)
        several = torch.autograd.grad(
            outputs, [x, model[0].weight], drawn(3, 12, 5), is_grads_batched=True, retain_graph=True
        )
        found += [gradient.square().sum().item() for gradient in several]
        found.append(torch.autograd.grad(outputs.sum(), x)[0].sum().item())
    return found


def nested_tensors(layout):
    model, found = Net(), []
    parts = [drawn(rows, 4, seed=rows) for rows in (2, 3, 1, 4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a prototype
        for _ in range(2):
            outputs = model(torch.nested.nested_tensor(parts, layout=layout))
            found.append(sum(part.sum().item() for part in outputs.unbind()))
    return found


def swapped_weights():
    """`load_state_dict` and `Module.to` swap weights if a script has asked torch for it."""
    model, second = Net(), Net()
    second[0].weight.data.mul_(2)
    found = gradients(model)
    torch.utils.swap_tensors(model[0].weight, second[0].weight)
    return [*found, *gradients(model), *gradients(second)]


def noise_on_gradients():
    """Hooks that draw random numbers run in the order of the unsplit backward."""
    torch.manual_seed(3)
    model = Net(nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.LayerNorm(4))
    model.double()
    order, x = [], drawn(12, 4).requires_grad_()
    for number, parameter in enumerate([*model.parameters(), x]):
        parameter.register_hook(lambda gradient: gradient + torch.randn_like(gradient))
        if number % 2 and parameter is not x:
            parameter.register_post_accumulate_grad_hook(lambda _, number=number: order.append(float(number)))
    found = gradients(model)
    model(x).square().sum().backward()
    return [*found, *order, *x.grad.flatten().tolist()]


class Loss(Net):
    def forward(self, x):
        return super().forward(x).square().mean()


def steps_within_autocast():
    """Autocast keeps the weights as they were at their first call in a block; these sums are exact."""
    model = nn.Linear(4, 3)
    model.weight.data, model.bias.data = drawn(3, 4).float(), drawn(3, seed=1).float()
    optimizer, found = torch.optim.SGD(model.parameters(), lr=1 / 16), []
    for number in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            for part in range(2):
                outputs = model(drawn(12, 4, seed=2 * number + part).float().round())
                found += outputs.detach().float().sum(1).tolist()
                optimizer.zero_grad()
                outputs.sum().backward()
                optimizer.step()
    return found


def test_steps_within_a_block_of_autocast_are_those_of_one_worker(compared):
    """A helper has no casts of earlier weights: half of the rows would be of other weights."""
    split, unsplit, lines = compared(steps_within_autocast)
    assert (split, unsplit) == (3, 3), lines


def derivatives_forward():
    model = Net(nn.Tanh())
    found = gradients(model)
    direction = drawn(12, 4, seed=7)
    with forward_ad.dual_level(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch imports its derivatives
        outputs = model(forward_ad.make_dual(drawn(12, 4, seed=8), direction))
        found.append(forward_ad.unpack_dual(outputs).tangent.sum().item())
    return [*found, *gradients(model)]


def test_derivatives_that_are_computed_forward_are_those_of_one_worker(compared):
    split, unsplit, lines = compared(derivatives_forward)
    assert (split, unsplit) == (4, 1), lines


class SavesInputs(Net):
    def __init__(self, save, path):
        super().__init__()
        self.save, self.path = save, path

    def forward(self, x):
        outputs = super().forward(x)
        self.save({"outputs": outputs.detach()}, self.path)
        return outputs


@pytest.mark.parametrize("save", [torch.save, save_file], ids=["torch", "safetensors"])
def test_a_model_that_writes_files_by_native_code_writes_those_of_one_worker(compared, tmp_path, save):
    """Python does not announce these files: each worker wrote its slice."""
    model = SavesInputs(save, str(tmp_path / "outputs"))
    _, unsplit, lines = compared(gradients, model)
    read = torch.load if save is torch.save else load_file
    assert len(read(tmp_path / "outputs")["outputs"]) == 12
    assert unsplit == 2, lines
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def a_global_that_is_looked_up_by_its_name():
    model = LooksUp()
    found = gradients(model)
    globals()["FACTOR"] = 3.0
    try:
        return [*found, *gradients(model)]
    finally:
        del globals()["FACTOR"]


class LooksUp(Net):
    def forward(self, x):
        return super().forward(x) * globals().get("FACTOR", 1.0)


def test_a_global_that_is_looked_up_by_its_name_is_that_of_the_script(compared):
    compared(a_global_that_is_looked_up_by_its_name)


def a_storage_that_the_script_holds():
    model = Net()
    storage = model[0].weight.untyped_storage()
    first = gradients(model)
    storage.fill_(0)
    return [*first, *gradients(model)]


def test_a_storage_that_the_script_holds_is_that_of_the_weight(compared):
    split, *_ = compared(a_storage_that_the_script_holds)
    assert split == 4


def a_loss_of_a_model_that_is_frozen_later():
    """Without weights that are trained, no graph shows how the loss was reduced."""
    model, found = Loss(nn.Tanh()), []
    for number in range(4):
        model.requires_grad_(number < 2)
        found.append(model(drawn(12, 4, seed=number)).item())
    return found


def test_calls_of_a_model_that_is_frozen_later_are_split(compared):
    split, unsplit, _ = compared(a_loss_of_a_model_that_is_frozen_later)
    assert (split, unsplit) == (4, 0)


SCALE = 1.0


class Activated(Net):
    def forward(self, x):
        return functional.gelu(super().forward(x).tanh())


def functions_of_torch():
    """Helpers have torch's own functions."""
    linear, tanh = functional.linear, torch.tanh
    replacements = [
        (functional, "gelu", functional.silu),
        (functional, "linear", lambda *args: linear(*args) * 2),
        (torch.Tensor, "tanh", lambda tensor: tanh(tensor) * 2),
        (nn.Linear, "forward", lambda layer, x: x @ layer.weight.t()),
    ]
    found = gradients(Activated())
    for owner, name, function in replacements:
        model = Activated()
        found += gradients(model)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, function)
            found += gradients(model)
        found += gradients(model)
    return found


def a_global_that_a_replaced_function_reads():
    linear, found = functional.linear, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "linear", lambda *args: linear(*args) * SCALE)
        model = Net()
        for scale in (1.0, 2.0):
            patch.setitem(globals(), "SCALE", scale)
            found += gradients(model)
    return found


SETTINGS = {"scale": 1.0}


def scaled(layer, x):
    return functional.linear(x, layer.weight * SETTINGS["scale"], layer.bias)


def a_setting_that_a_replaced_layer_reads():
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Linear, "forward", scaled)
        model = Net()
        for scale in (1.0, 2.0):
            patch.setitem(SETTINGS, "scale", scale)
            found += gradients(model)
    return found


def a_layer_replaced_between_calls():
    model, found = Net(), gradients(Net())
    for scale in (1.0, 2.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nn.Linear, "forward", scaled)
            patch.setitem(SETTINGS, "scale", scale)
            found += gradients(model)
    return found


def calls_that_a_replaced_layer_counts():
    seen, forward = [], nn.Linear.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda layer, x: (seen.append(1), forward(layer, x))[1])
        found = gradients(Net())
    return [*found, float(len(seen))]


class Reads(Net):
    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, x):
        return super().forward(x) * self.read()


def two_if(condition):
    return 2.0 if condition else 1.0


READ = {
    "environment": lambda: two_if(os.getenv("SAMESTEP_TEST_TWO")),
    "arguments": lambda: two_if("two" in sys.argv),
    "folder": lambda: two_if(Path.cwd() != START),
    "level": lambda: two_if(logging.getLogger("of.a.model").isEnabledFor(logging.DEBUG)),
    "denormals": lambda: two_if(sys.float_info.min / 2 == 0),
    "anomalies": lambda: two_if(torch.is_anomaly_enabled()),
    "warnings": lambda: two_if(torch.is_deterministic_algorithms_warn_only_enabled()),
    "sums": lambda: two_if(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
}
START = Path.cwd()


class MixesIf(Reads):
    """Compares samples if a setting is on."""

    def forward(self, x):
        scores = Net.forward(self, x)
        return scores - scores.mean(0) if self.read() == 2 else scores


def settings_of_the_process(name, kind=Reads):
    model, logger = kind(READ[name]), logging.getLogger("of.a.model")
    torch.use_deterministic_algorithms(True)
    found = gradients(model)
    matmul = torch.backends.cuda.matmul
    with pytest.MonkeyPatch.context() as patch, torch.autograd.set_detect_anomaly(True):
        patch.setenv("SAMESTEP_TEST_TWO", "1")
        patch.setattr(sys, "argv", ["two"])
        patch.chdir("/")
        logger.setLevel(logging.DEBUG)
        torch.set_flush_denormal(True)
        torch.use_deterministic_algorithms(True, warn_only=True)
        matmul.allow_bf16_reduced_precision_reduction = False
        found += gradients(model)
    logger.setLevel(logging.NOTSET)
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)
    matmul.allow_bf16_reduced_precision_reduction = True
    return [*found, *gradients(model)]


def an_environment_for_one_model():
    """Two mirrors were made with other variables."""
    models, found = (Reads(READ["environment"]), Reads(READ["environment"])), []
    for number in (0, 1, 0, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SAMESTEP_TEST_TWO", "1" * number)
            found += gradients(models[number])
    return found


@pytest.mark.parametrize("name", READ)
def test_settings_of_the_process_that_a_call_reads_are_those_of_the_script(compared, name):
    split, *_ = compared(settings_of_the_process, name)
    assert split >= 2


@pytest.mark.parametrize("name", READ)
def test_a_branch_on_a_setting_of_the_process_has_the_result_of_one_worker(compared, name):
    """Catches a plan that was checked with the setting off, and is followed when it is on."""
    split, *_ = compared(settings_of_the_process, name, MixesIf)
    assert split >= 1


SPLIT_BEFORE = [
    *(
        a_dimension_of_a_layer,
        forward_of_a_layer,
        ended_models,
        backward_hooks_on_all_modules,
        hooks_on_saved_tensors,
        batched_gradients,
    ),
    *(a_layout_of_weights, numbers_drawn_between_calls, swapped_weights, noise_on_gradients),
    *(functions_of_torch, a_global_that_a_replaced_function_reads, an_environment_for_one_model),
    calls_that_a_replaced_layer_counts,
]


@pytest.mark.parametrize("work", SPLIT_BEFORE, ids=lambda work: work.__name__)
def test_calls_that_were_split_before_a_change_are_as_on_one_worker(compared, work):
    split, *_ = compared(work)
    assert split >= 2


@pytest.mark.parametrize("work", [a_setting_that_a_replaced_layer_reads, a_layer_replaced_between_calls])
def test_a_forward_in_place_of_that_of_torchs_layers_has_the_result_of_one_worker(compared, work):
    """Only this catches a helper with an earlier value of a global that it reads."""
    compared(work)


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_that_a_call_is_given_are_as_on_one_worker(compared, kind):
    compared(numbers_of_a_generator, kind)


def test_calls_without_hooks_on_saved_tensors_are_unsplit(compared):
    split, *_ = compared(disabled_hooks)
    assert split == 0


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])
def test_calls_with_nested_tensors_are_unsplit(compared, layout):
    split, *_ = compared(nested_tensors, layout)
    assert split == 0


class KeepsNorm(Net):
    """Keeps a part of the loss in an attribute."""

    def forward(self, x):
        outputs = super().forward(x)
        self.norm = outputs.square().mean()
        return outputs


def an_evaluation_in_inference_mode():
    model = KeepsNorm()
    found = gradients(model)
    with torch.inference_mode():
        found.append(model(drawn(12, 4, seed=5)).sum().item())
    return [*found, *gradients(model)]


def test_an_attribute_of_inference_mode_keeps_no_later_call_unsplit(compared):
    """It cannot get a gradient: a slice of the next training call failed within torch."""
    split, unsplit, _ = compared(an_evaluation_in_inference_mode)
    assert (split, unsplit) == (5, 0)
