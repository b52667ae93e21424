"""What is pasted holds no secret, wherever the secret came from."""

import pytest

from samestep.doctor.examination import Examination
from samestep.doctor.part import Finding
from samestep.doctor.ticket import Mask, environment_rows, is_secret, masked

ENVIRONMENT = {
    "HOME": "/home/ada",
    "USER": "ada",
    "WANDB_API_KEY": "0123456789abcdef",
    "HF_TOKEN": "hf_abcdefgh",
    "PWD": "/home/ada/project",
    "SLURM_JOB_ID": "12",
    "NCCL_DEBUG": "INFO",
    "MY_NOTES": "private",
    "TORCH_HOME": "/home/ada/.torch",
}
MASK = Mask.of(ENVIRONMENT)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python train.py --key 0123456789abcdef", "python train.py --key ***"),
        ("/home/ada/project/train.py", "~/project/train.py"),
        ("/home/adam/project", "/home/adam/project"),
        ("/scratch/ada/runs and ada@node0", "/scratch/USER/runs and USER@node0"),
        ("an adapter of ada", "an adapter of ada"),
        ("http://ada:hunter22@proxy:3128/", "http://***@proxy:3128/"),
        ("/srv/project", "/srv/project"),
    ],
)
def test_what_must_not_be_seen_is_masked_in_any_text(text, shown):
    assert MASK.text(text) == shown


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "github_token",
        "DB_PASSWORD",
        "DB_PWD",
        "SSH_AUTH_SOCK",
        "GITHUB_PAT",
        "MY_PASSWD",
    ],
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "PATH", "SLURM_JOB_ID", "PYTHONPATH", "OMP_NUM_THREADS"])
def test_names_of_no_secrets(name):
    assert not is_secret(name)


def test_only_variables_that_say_how_a_run_goes_are_told():
    assert environment_rows(ENVIRONMENT) == [
        ("variables", "HF_TOKEN=***"),
        ("", "NCCL_DEBUG=INFO"),
        ("", "SLURM_JOB_ID=12"),
        ("", "TORCH_HOME=/home/ada/.torch"),
        ("", "WANDB_API_KEY=***"),
    ]


def test_an_examination_is_masked_everywhere_but_in_its_host():
    own = Examination(
        rank=0,
        size=1,
        host="ada",
        summary="1 worker",
        rows=(("run folder", "/home/ada/runs"),),
        findings=(Finding(text="4242 (python --key 0123456789abcdef) still runs"),),
        facts={"folder": {"folder": "/home/ada/runs"}, "ports": [1, None, "hf_abcdefgh"]},
    )
    hidden = masked(own, MASK)
    assert hidden.host == "ada"
    assert "/home/ada" not in hidden.to_json()
    assert "0123456789abcdef" not in hidden.to_json()
    assert hidden.facts["ports"] == [1, None, "***"]
    assert hidden.rows == (("run folder", "~/runs"),)


def test_short_values_are_not_hunted_for():
    """A key of one character would turn each such character into a mask."""
    assert Mask.of({"A_KEY": "1"}).text("rank 1 of 11") == "rank 1 of 11"
