"""A report contains no secret, whether from a variable, a path or a command."""

import pytest

from samestep.launchers.detect import detect
from samestep.studies.doctor.checks import Check, Options, run_checks
from samestep.studies.doctor.masking import Mask, environment_rows, is_secret, masked
from samestep.studies.doctor.results import Finding, Result
from support.recordings import recording

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
        ("https://bob:p@ss/w@host/x", "https://***@host/x"),
        ("python train.py --api-key sk-12345678 --lr 1", "python train.py --api-key *** --lr 1"),
        ("python train.py --password=hunter2", "python train.py --password=***"),
        ("env S3_SECRET=hunter2 python train.py", "env S3_SECRET=*** python train.py"),
        ("http://host:80/monkey wrench", "http://host:80/monkey wrench"),
        ("/srv/project", "/srv/project"),
    ],
)
def test_secrets_and_user_names_are_masked_in_any_text(text, shown):
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
        "SLURM_JWT",
    ],
)
def test_names_of_secret_variables_are_recognized(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "PATH", "SLURM_JOB_ID", "PYTHONPATH", "OMP_NUM_THREADS"])
def test_names_of_other_variables_are_not_secret(name):
    assert not is_secret(name)


def test_only_variables_that_affect_a_run_are_shown():
    assert environment_rows(ENVIRONMENT) == [
        ("variables", "HF_TOKEN=***"),
        ("", "NCCL_DEBUG=INFO"),
        ("", "SLURM_JOB_ID=12"),
        ("", "TORCH_HOME=/home/ada/.torch"),
        ("", "WANDB_API_KEY=***"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "OMPI_MCA_orte_precondition_transports",
        "PMIX_SERVER_URI2",
        "PMI_PORT",
        "SLURM_EXPORT_ENV",
        "SLURM_JOB_COMMENT",
        "SLURM_SPANK_SITE",
    ],
)
def test_internal_variables_of_launchers_are_not_shown(name):
    assert environment_rows({name: "a1b2-c3d4"}) == []


def test_the_token_of_a_scheduler_is_not_shown():
    assert "eyJhb" not in str(environment_rows({"SLURM_JWT": "eyJhb.c2Vj.sig"}))


@pytest.mark.parametrize("name", ["slurm_step_2x2_rank3", "openmpi_2x2_rank3", "mpich_2x2_rank3"])
def test_the_variables_that_decide_the_place_are_shown(name):
    environment = recording(name).environment
    names = {text.partition("=")[0] for _, text in environment_rows(environment)}
    decided = {variable for variable, _ in detect(environment).evidence}
    assert decided <= names


def test_a_result_is_masked_everywhere():
    own = Result(
        rows=(("run folder", "/home/ada/runs"),),
        findings=(Finding(text="4242 (python --key 0123456789abcdef) still runs"),),
        facts={"folder": {"folder": "/home/ada/runs"}, "ports": [1, None, "hf_abcdefgh"]},
    )
    hidden = masked(own, MASK)
    assert "/home/ada" not in str(hidden)
    assert "0123456789abcdef" not in str(hidden)
    assert hidden.facts["ports"] == [1, None, "***"]
    assert hidden.rows == [("run folder", "~/runs")]


def test_the_result_of_a_rank_is_masked_everywhere_but_in_its_host(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "ada@node0")
    environment = {name: ENVIRONMENT[name] for name in ("HOME", "USER", "WANDB_API_KEY", "TORCH_HOME")}
    found = Result(
        rows=[("run folder", "/home/ada/runs")],
        findings=[Finding(text="4242 (python --key 0123456789abcdef) still runs")],
    )
    check = Check("a folder", lambda _: found, 5.0)
    (rank,) = run_checks(environment, Options(devices=False, ticket=True), [check]).report.ranks
    assert rank.host == "ada@node0"
    assert rank.rows[0] == ("run folder", "~/runs")
    assert ("", "WANDB_API_KEY=***") in rank.rows
    assert "/home/ada" not in str(rank)
    assert "0123456789abcdef" not in str(rank)


def test_short_values_are_not_masked():
    """Otherwise a key of one character would mask every such character."""
    assert Mask.of({"A_KEY": "1"}).text("rank 1 of 11") == "rank 1 of 11"
