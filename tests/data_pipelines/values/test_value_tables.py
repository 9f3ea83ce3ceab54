"""Tables of values: the rules of finetuning's files, types by us, refusals with column and row."""

import datetime
import decimal
import gzip

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data_pipelines.values import value_tables


def table(path, text, **reading):
    path.write_bytes(text.encode(reading.get("encoding", "utf-8")))
    return value_tables.Table(str(path), value_tables.Reading(**reading))


def values(path, text, name="a", **reading):
    return table(path, text, **reading).cells(name).values.tolist()


def test_delimiters_marks_encodings_and_compression_do_not_change_the_cells(tmp_path):
    plain = values(tmp_path / "p.csv", "a,b\n7.76,x\n-1000.5,y\n")
    assert plain == [7.76, -1000.5]
    for name, text, reading in (
        ("bom.csv", "\ufeffa;b\n7,76;x\n-1.000,5;y\n;\n", {}),
        ("tab.tsv", 'a\tb\n7.76\t"x\n-1000.5\ty\n', {}),
        ("bar.csv", "a|b\r\n7.76|x\r\n-1000.5|y\r\n", {}),
        ("mac.csv", "a,b\r7.76,x\r-1000.5,y\r", {}),
        ("excel.csv", "sep=;\na;b\n7,76;x\n-1.000,5;y\n", {}),
        ("hash.csv", "a#b\n7.76#Köln\n-1000.5#y\n", {"delimiter": "#", "encoding": "cp1252"}),
    ):
        assert values(tmp_path / name, text, **reading) == plain, name
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(b"a,b\n7.76,x\n-1000.5,y\n"))
    assert value_tables.Table(str(tmp_path / "z.csv.gz")).cells("a").values.tolist() == plain


def test_line_ends_in_quotes_of_any_size_are_in_a_cell(tmp_path):
    long = ("line" * (1 << 18) + "\n") * 20  # 20 MiB, more than a block
    rows = "".join(f'{at},"x{at}\ny"\n' for at in range(2_000))
    made = table(tmp_path / "q.csv", f'a,b\n1.5,"{long}"\n{rows}')
    assert made.cells("a").values.tolist() == [1.5, *range(2_000)]
    assert made.place(2) == f"{tmp_path / 'q.csv'}:25"


def test_cells_that_are_no_numbers_are_not_observed_and_said(tmp_path, caplog):
    cells = [str(at) for at in range(100)]
    cells[40], cells[41], cells[42] = "?", "NA", ""
    made = table(tmp_path / "s.csv", "\n".join(["a,b", *(f"{it},x" for it in cells)]))
    found = made.cells("a").values
    assert np.flatnonzero(np.isnan(found)).tolist() == [40, 41, 42]
    assert "'a'" in caplog.text and "'?'" in caplog.text and "s.csv:42" in caplog.text
    caplog.clear()
    again = table(tmp_path / "s.csv", made_text(cells), missing=("?",))
    assert np.isnan(again.cells("a").values).sum() == 3 and not caplog.text


def made_text(cells):
    return "\n".join(["a,b", *(f"{it},x" for it in cells)])


def test_text_keeps_its_letters_and_loses_only_the_space_around_it(tmp_path):
    made = table(tmp_path / "t.csv", "a,b\n007,NA\n True ,Cafe\u0301\n,Café\n")
    texts = made.cells("a")
    assert [texts.texts[at] if at >= 0 else None for at in texts.values] == ["007", "True", None]
    assert made.cells("b").texts[:2] == ("NA", "Café") and made.cells("b").values[2] == 1


def test_types_of_parquet_become_numbers_seconds_and_texts(tmp_path):
    zone = datetime.timezone(datetime.timedelta(hours=1))
    columns = {
        "half": pyarrow.array([np.float16(1.5), None, np.float16(3)], pyarrow.float16()),
        "price": [decimal.Decimal("1.50"), None, decimal.Decimal("2.25")],
        "span": [datetime.timedelta(seconds=5, milliseconds=250), None, None],
        "day": [datetime.date(1970, 1, 2), None, None],
        "moment": [datetime.datetime(1970, 1, 1, 1, 0, 0, 250000, zone), None, None],
        "nano": pyarrow.array([1_500_000_000, None, None], pyarrow.timestamp("ns")),
        "opens": [datetime.time(8, 30), None, datetime.time(0, 0, 1)],
        "flag": [True, None, False],
        "kind": pyarrow.array(["x", None, "y"]).dictionary_encode(),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet", compression="zstd")
    made = value_tables.Table(str(tmp_path / "t.parquet"))
    found = {name: made.cells(name) for name in made.names}
    first = {name: it.values[0] for name, it in found.items()}
    assert first["half"] == 1.5 and first["price"] == 1.5 and first["span"] == 5.25
    assert first["day"] == 86_400 and first["moment"] == 0.25 and first["nano"] == 1.5
    assert first["opens"] == 30_600
    kinds = [found[name].kind for name in ("span", "day", "opens", "flag", "kind")]
    assert kinds == ["number", "time", "clock", "text", "text"]
    assert found["flag"].texts == ("true", "false")
    assert all(np.isnan(it.values[1]) for name, it in found.items() if it.kind != "text")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a,b\n1,x\ninf,y\n", "'a' of .*t.csv:3 holds an infinite"),
        ("a,b\n1,x\n9007199254740993,y\n", "'a' of .*t.csv:3 holds 9007199254740993"),
        ("a,b\n1,x\n1,x,y\n", "t.csv:3: the row has 3 columns"),
        ('a,b\n1,"x\n2,y\n', "t.csv:2: the row is not CSV"),
        ("a,a\n1,2\n", "t.csv has several columns 'a'"),
        ("a,b\n", "t.csv has no rows"),
        ("", "t.csv:1: it has no columns"),
    ],
)
def test_faults_name_file_line_and_column(tmp_path, text, named):
    with pytest.raises(ValueError, match=named):
        table(tmp_path / "t.csv", text).cells("a")


def test_a_large_number_among_measured_ones_is_read(tmp_path):
    """R writes 1e18 - 1408 with all of its digits; it names nothing that must be kept apart."""
    made = table(tmp_path / "t.csv", "a,b\n999999999999998592,x\n0.25,y\nNA,z\n").cells("a")
    np.testing.assert_array_equal(made.values, [1e18 - 1408, 0.25, np.nan])


def test_rows_without_a_cell_decide_nothing(tmp_path):
    made = table(tmp_path / "t.csv", "a,b\n,x\n,x\n1.5,y\n")
    assert made.cells("a", training=np.arange(2)).kind == value_tables.NUMBER


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ([2**60, 1], "'a' of .*, row 1 holds 1152921504606846976"),
        ([[1], [2]], "'a' of .*t.parquet holds list"),
        ([1.0, float("inf")], "'a' of .*, row 2 holds an infinite"),
        ([b"\xff", b"a"], "'a' of .*t.parquet"),
    ],
)
def test_columns_of_parquet_that_cannot_be_read_are_named(tmp_path, column, named):
    parquet.write_table(pyarrow.table({"a": column}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=named):
        value_tables.Table(str(tmp_path / "t.parquet")).cells("a")


def test_other_encodings_are_refused_with_the_option(tmp_path):
    (tmp_path / "t.csv").write_bytes("a,b\n1,Malmö\n2,Köln\n3,Orléans\n".encode("cp1252"))
    with pytest.raises(ValueError, match=r"t.csv:2: .*cp1252"):
        value_tables.Table(str(tmp_path / "t.csv"))


def test_named_empty_cells_count_in_columns_of_plain_numbers_too(tmp_path):
    made = values(tmp_path / "t.csv", "a,b\n1.5,x\n-999,y\n,z\n", missing=("-999",))
    assert made[0] == 1.5 and np.isnan(made[1:]).all()


def test_a_few_zeros_in_front_make_a_column_text_which_is_said(tmp_path, caplog):
    cells = [*(str(at) for at in range(1, 60)), "007"]
    made = table(tmp_path / "t.csv", made_text(cells))
    assert made.cells("a").kind == "text"
    assert "'a'" in caplog.text and "1.67%" in caplog.text and "'007' in" in caplog.text
    assert f"{tmp_path / 't.csv'}:61" in caplog.text


def test_files_of_other_suffixes_are_read_as_csv_and_rows_lines_are_those_of_the_file(tmp_path):
    for name, text, line in (
        ("plain.txt", "a;b\n7,5;x\n8,25;y\n", 3),
        ("open.txt", "sep=;\na;b\n7,5;x\n8,25;y", 4),
        ("blank.txt", "a;b\n7,5;x\n\n8,25;y\n", 4),
        ("quoted.txt", 'a;b\n7,5;"x\nx"\n8,25;y\n', 4),
        ("excel.txt", "a;b\n7,5;x\n8,25;y\n;\n", 3),
    ):
        made = table(tmp_path / name, text)
        assert made.cells("a").values.tolist() == [7.5, 8.25]
        assert made.place(1) == f"{tmp_path / name}:{line}", name
