"""A table of workers and seconds: read as people write them, refused by its line otherwise."""

import pytest

from samestep.base.errors import UsageError
from samestep.report.scaling.sources import study_of
from samestep.report.scaling.times_csv import read_times
from samestep.scaling.times import Time

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
    ],
    ids=["bare", "head", "spreadsheet", "tabs", "spaces", "columns", "quotes", "order"],
)
def test_a_table_is_read_as_people_write_it(tmp_path, text):
    (tmp_path / "times.csv").write_text(text)
    assert sorted(read_times(tmp_path / "times.csv"), key=lambda time: time.workers) == WANTED


@pytest.mark.parametrize(
    "text",
    [
        "1,100\n2,52.5,strong\n2,104,weak\n4,110,Weak\n",
        "scaling,workers,host,seconds\nstrong,1,a,100\nstrong,2,a,52.5\nweak,2,a,104\nweak,4,a,110\n",
    ],
)
def test_a_column_says_what_is_weak(tmp_path, text):
    (tmp_path / "times.csv").write_text(text)
    assert read_times(tmp_path / "times.csv") == [
        Time(1, 100.0),
        Time(2, 52.5),
        Time(2, 104.0, is_weak=True),
        Time(4, 110.0, is_weak=True),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,100\ntwo,50\n", r"times\.csv, line 2: 'two' is no number of workers"),
        ("1,100\n0,50\n", "line 2: '0' is no number of workers"),
        ("1,100\n2.5,50\n", r"line 2: '2\.5' is no number of workers"),
        ("workers,seconds\n\n1,100\n2,-5\n", "line 4: '-5' is no time in seconds"),
        ("1,100\n2,nan\n", "line 2: 'nan' is no time in seconds"),
        ("1,100\n2,\n", "line 2: '' is no time in seconds"),
        ("1,100\n2\n", "line 2: '2' is not workers and seconds"),
        ("1,100,5\n", "line 1: '5' is neither strong nor weak"),
        ("a,b,c\n1,2,3\n", "line 1: of the columns a, b, c, one must be called workers and one seconds"),
        ("1,100\n2,52,strong,a\n", "line 2: '2, 52, strong, a' is not workers and seconds"),
        ("n,s,mode\n1,100,\n", "line 2: '' is neither strong nor weak"),
        ("# nothing\n\n", "is empty: give lines of workers, seconds"),
        ("2,50\n2,51\n", "tells of one number of workers only"),
        ("workers,seconds\n", "has a head and no line below it"),
        ("1,9\n1,8,weak\n2,5\n", "has weak runs of 1 worker only: add those of more workers, or leave"),
        ("2,9\n2,8,weak\n4,8,weak\n", "has strong runs of 2 workers only: add those of more workers"),
        ("1,100\n\x1b[31m,\x07\n", "is no table: it holds characters that no text has"),
    ],
)
def test_what_is_none_is_told_by_its_line(tmp_path, text, message):
    (tmp_path / "times.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_times(tmp_path / "times.csv")


def test_a_study_says_where_strong_and_weak_have_runs_of_their_own_on_the_fewest_workers(tmp_path):
    table = tmp_path / "times.csv"
    table.write_text("1,640\n8,85\n1,10,weak\n8,11,weak\n")
    assert study_of([table]).notes[0].endswith("against its own: rates of the two do not compare.")
    table.write_text("1,640\n8,85\n8,700,weak\n")
    assert study_of([table]).notes[0].endswith("as the fewest workers did (weak).")


def test_what_is_no_text_is_not_printed(tmp_path):
    (tmp_path / "times.csv").write_bytes(bytes([0xED, 0xEA, 0x02, 0x0A, 0x31, 0x2C, 0x35]))
    with pytest.raises(UsageError, match=r"times\.csv is no table: it holds characters that no text has"):
        read_times(tmp_path / "times.csv")


def test_a_table_in_an_older_encoding_is_one(tmp_path):
    (tmp_path / "times.csv").write_bytes("# Läufe\n1,100\n2,52.5\n4,30\n".encode("latin-1"))
    assert read_times(tmp_path / "times.csv") == WANTED


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*times\.csv: No such file"):
        read_times(tmp_path / "times.csv")
