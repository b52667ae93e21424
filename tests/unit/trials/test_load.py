"""What other programs do on a host is what its processors do while nothing of ours runs."""

import pytest

from samestep.trials import load
from samestep.trials.load import Load, look

BEFORE = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 100 0 50 1000 10 0 0 0 70 0\ncpu1 5 5 5 5 5 5 5 5 0 0\nintr 5\n"
# cpu0: 10 of 40 ticks idle, 5 waiting for a disk; 8 of its user's were a guest's. cpu1: all taken by a host.
AFTER = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 115 0 55 1010 15 2 3 0 78 0\ncpu1 5 5 5 5 5 5 5 45 0 0\nintr 9\n"


@pytest.mark.parametrize(
    ("allowed", "busy"),
    [((0, 1), 25 / 40 + 1), ((0,), 25 / 40), ((1, 7), 1.0)],
    ids=["all", "one", "unknown"],
)
def test_the_processors_that_may_be_used_count(tmp_path, monkeypatch, allowed, busy):
    stat = tmp_path / "stat"
    stat.write_text(BEFORE)
    monkeypatch.setattr(load, "sleep", lambda _: stat.write_text(AFTER))
    monkeypatch.setattr(load, "cpu_share", lambda: type("Share", (), {"allowed": allowed}))

    found = look(stat)

    assert found == Load(pytest.approx(busy), len({0, 1} & set(allowed)))
    assert found.is_much


def test_what_a_system_does_by_itself_on_many_processors_is_nobodys_program(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    after = [1 if k % 8 == 0 else 0 for k in range(128)]  # 16 of 128 are busy for one tick of 30
    stat.write_text("".join(f"cpu{k} 0 0 0 0 0 0 0 0 0 0\n" for k in range(128)))
    seen = "".join(f"cpu{k} {busy} 0 0 {30 - busy} 0 0 0 0 0 0\n" for k, busy in enumerate(after))
    monkeypatch.setattr(load, "sleep", lambda _: stat.write_text(seen))
    monkeypatch.setattr(load, "cpu_share", lambda: type("Share", (), {"allowed": range(128)}))

    assert look(stat) == Load(0, 128)


def test_who_does_not_tell_is_not_guessed_at(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "sleep", lambda _: None)
    assert look(tmp_path / "none") is None
    (tmp_path / "stat").write_text(BEFORE)
    assert look(tmp_path / "stat") is None
