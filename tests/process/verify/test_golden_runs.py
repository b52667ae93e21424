"""A golden run of a real script: the changes of a commit that `verify --reference` names."""

import pytest

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = torch.randn(64, 16)
data = TensorDataset(images, images[:, :4].argmax(1))
order = torch.Generator().manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    model.train()
    for inputs, labels in DataLoader(data, batch_size=16, shuffle=True, generator=order):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"accuracy {(model(images).argmax(1) == data.tensors[1]).float().mean():.4f}")
"""
CHANGES = {
    "": [],
    "lr=0.1 -> lr=0.1001": ["learning-rate"],
    "manual_seed(1) -> manual_seed(2)": ["other-order"],
    "Dropout(0.1) -> Dropout(0.2)": ["dropout-rate"],
    "momentum=0.9 -> momentum=0.8": ["optimizer-changed"],
    "nn.ReLU() -> nn.GELU()": ["model-changed"],
    "optimizer = -> model[0].weight.data[3, 4] += 1e-4; optimizer =": ["initial-weights"],
    "loss.backward() -> (0.5 * loss).backward()": ["gradient-scale"],
    "float().mean() -> float().sum()": ["printed"],
}


@pytest.fixture(scope="module")
def golden(verifier, tmp_path_factory):
    """A function that verifies the script, with some text replaced, against its golden run."""
    folder = tmp_path_factory.mktemp("golden")
    (folder / "train.py").write_text(SCRIPT)
    saved = verifier.verify(folder / "train.py", save=folder / "golden.json", workers=(1,))
    assert saved["verdict"] == "same"

    def verify(change, workers=1):
        old, _, new = change.partition(" -> ")
        assert not old or SCRIPT.count(old) == 1
        (folder / "changed.py").write_text(SCRIPT.replace(old, new) if old else SCRIPT)
        return verifier.verify(folder / "changed.py", reference=folder / "golden.json", workers=(workers,))

    return verify


@pytest.mark.parametrize(("change", "codes"), CHANGES.items())
def test_a_change_of_the_script_is_named(golden, change, codes):
    report = golden(change)
    assert [finding["code"] for finding in report["findings"]] == codes, report["findings"]
    assert report["reference"] == "golden"


def test_three_workers_agree_with_a_golden_run_of_one(golden):
    assert golden("", workers=3)["verdict"] == "same"


def test_a_script_without_a_seed_of_its_data_is_not_saved(verifier, tmp_path):
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("torch.Generator().manual_seed(1)", "torch.Generator(); order.seed()")
    )
    report = verifier.verify(tmp_path / "train.py", save=tmp_path / "golden.json", workers=(1,))
    assert report["verdict"] == "inconclusive"
    assert not (tmp_path / "golden.json").exists()


def test_a_time_budget_shortens_the_comparison(verifier, tmp_path):
    budget = "for epoch in range(3):\n    if epoch and time.time() > end: break\n"
    text = "import time\nend = 1e20" + SCRIPT.replace("for epoch in range(3):\n", budget)
    (tmp_path / "train.py").write_text(text)
    verifier.verify(tmp_path / "train.py", save=tmp_path / "golden.json", workers=(1,))
    (tmp_path / "train.py").write_text(text.replace("1e20", "0.0"))
    report = verifier.verify(tmp_path / "train.py", reference=tmp_path / "golden.json", workers=(1,))
    assert (report["verdict"], report["findings"]) == ("same", [])
    assert "later-steps" in report["not_compared"]
