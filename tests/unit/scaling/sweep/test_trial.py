"""The background load is the load of the host while no run is in progress."""

import pytest

from samestep.scaling.sweep import trial
from samestep.scaling.sweep.trial import Load, sample_load

BEFORE = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 100 0 50 1000 10 0 0 0 70 0\ncpu1 5 5 5 5 5 5 5 5 0 0\nintr 5\n"
# cpu0: 10 of 40 ticks idle, 5 waiting for a disk; 8 of its user's were a guest's. cpu1: all taken by a host.
AFTER = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 115 0 55 1010 15 2 3 0 78 0\ncpu1 5 5 5 5 5 5 5 45 0 0\nintr 9\n"


@pytest.mark.parametrize(
    ("allowed", "busy"),
    [((0, 1), 25 / 40 + 1), ((0,), 25 / 40), ((1, 7), 1.0)],
    ids=["all", "one", "unknown"],
)
def test_processors_of_the_affinity_mask_count(tmp_path, monkeypatch, allowed, busy):
    stat = tmp_path / "stat"
    stat.write_text(BEFORE)
    monkeypatch.setattr(trial, "sleep", lambda _: stat.write_text(AFTER))
    monkeypatch.setattr(trial, "cpu_share", lambda: type("Share", (), {"allowed": allowed}))

    found = sample_load(stat)

    assert found == Load(pytest.approx(busy), len({0, 1} & set(allowed)))
    assert found.is_much


def test_the_load_of_an_idle_system_is_not_counted(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    after = [1 if k % 8 == 0 else 0 for k in range(128)]  # 16 of 128 are busy for one tick of 30
    stat.write_text("".join(f"cpu{k} 0 0 0 0 0 0 0 0 0 0\n" for k in range(128)))
    seen = "".join(f"cpu{k} {busy} 0 0 {30 - busy} 0 0 0 0 0 0\n" for k, busy in enumerate(after))
    monkeypatch.setattr(trial, "sleep", lambda _: stat.write_text(seen))
    monkeypatch.setattr(trial, "cpu_share", lambda: type("Share", (), {"allowed": range(128)}))

    assert sample_load(stat) == Load(0, 128)


def test_without_counters_the_load_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "sleep", lambda _: None)
    assert sample_load(tmp_path / "none") is None
    (tmp_path / "stat").write_text(BEFORE)
    assert sample_load(tmp_path / "stat") is None
