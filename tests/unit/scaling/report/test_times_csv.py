"""A table of workers and seconds is read in many forms, or refused with its line."""

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.analysis.points import Time
from samestep.scaling.report.sources import read_times

WANTED = [Time(1, 100.0), Time(2, 52.5), Time(4, 30.0)]


@pytest.mark.parametrize(
    "text",
    [
        "1,100\n2,52.5\n4,30\n",
        "workers,seconds\n1,100\n2,52.5\n4,30\n",
        "\ufeffGPUs;Time (s)\r\n1;100\r\n2;52,5\r\n4;30\r\n",
        "# measured on Monday\nn\ttime_s\n1\t100\n\n2\t52.5\n4\t30",
        "1 100\n2   52.5\n 4 30\n",
        "host,elapsed,ranks\na,100,1\nb,52.5,2\nc,30,4\n",
        '"workers","seconds"\n"1","100"\n"2","5.25e1"\n"4","30"\n',
        "4,30\n1.0,100\n2,52.5\n",
        "workers time (s)\n1 100\n2 52.5\n4 30\n",
    ],
    ids=["bare", "head", "spreadsheet", "tabs", "spaces", "columns", "quotes", "order", "unit"],
)
def test_a_table_is_read_in_many_forms(tmp_path, text):
    (tmp_path / "times.csv").write_text(text)
    assert sorted(read_times(tmp_path / "times.csv"), key=lambda time: time.workers) == WANTED


@pytest.mark.parametrize(
    "text",
    [
        "1,100\n2,52.5,strong\n2,104,weak\n4,110,Weak\n",
        "scaling,workers,host,seconds\nstrong,1,a,100\nstrong,2,a,52.5\nweak,2,a,104\nweak,4,a,110\n",
    ],
)
def test_a_column_marks_weak_runs(tmp_path, text):
    (tmp_path / "times.csv").write_text(text)
    assert read_times(tmp_path / "times.csv") == [
        Time(1, 100.0),
        Time(2, 52.5),
        Time(2, 104.0, is_weak=True),
        Time(4, 110.0, is_weak=True),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1,100\ntwo,50\n", ["line 2", "'two'", "workers"]),
        ("1,100\n0,50\n", ["line 2", "'0'", "workers"]),
        ("1,100\n2.5,50\n", ["line 2", "'2.5'", "workers"]),
        ("workers,seconds\n\n1,100\n2,-5\n", ["line 4", "'-5'", "seconds"]),
        ("1,100\n2,nan\n", ["line 2", "'nan'", "seconds"]),
        ("1,100\n2,\n", ["line 2", "''", "seconds"]),
        ("1,100\n2\n", ["line 2", "'2'", "workers and seconds"]),
        ("1,100,5\n", ["line 1", "'5'", "strong", "weak"]),
        ("a,b,c\n1,2,3\n", ["line 1", "a, b, c", "workers", "seconds"]),
        ("n,time (ms)\n1,100\n2,52\n", ["line 1", "time (ms)", "seconds"]),
        ("n runtime [min]\n1 100\n2 52\n", ["line 1", "runtime [min]", "seconds"]),
        ("1,100\n2,52,strong,a\n", ["line 2", "'2, 52, strong, a'", "workers and seconds"]),
        ("n,s,mode\n1,100,\n", ["line 2", "''", "strong", "weak"]),
        ("# nothing\n\n", ["empty"]),
        ("2,50\n2,51\n", ["one number of workers"]),
        ("workers,seconds\n", ["header"]),
        ("1,9\n1,8,weak\n2,5\n", ["weak runs", "1 worker "]),
        ("2,9\n2,8,weak\n4,8,weak\n", ["strong runs", "2 workers"]),
        ("1,100\n\x1b[31m,\x07\n", ["control characters"]),
    ],
)
def test_an_invalid_table_is_refused_with_its_line(tmp_path, text, names):
    (tmp_path / "times.csv").write_text(text)
    with pytest.raises(UsageError) as error:
        read_times(tmp_path / "times.csv")
    assert [name for name in ("times.csv", *names) if name not in str(error.value)] == []


def test_control_characters_are_not_printed(tmp_path):
    (tmp_path / "times.csv").write_bytes(bytes([0xED, 0xEA, 0x02, 0x0A, 0x31, 0x2C, 0x35]))
    with pytest.raises(UsageError, match=r"times\.csv") as error:
        read_times(tmp_path / "times.csv")
    assert str(error.value).isprintable()


def test_a_table_in_an_older_encoding_is_read(tmp_path):
    (tmp_path / "times.csv").write_bytes("# Läufe\n1,100\n2,52.5\n4,30\n".encode("latin-1"))
    assert read_times(tmp_path / "times.csv") == WANTED


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"times\.csv: No such file"):
        read_times(tmp_path / "times.csv")
