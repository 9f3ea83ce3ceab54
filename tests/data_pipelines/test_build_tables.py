"""Tables to records: kinds of columns, scaling by the training part, parts, what is exchanged."""

import dataclasses
import datetime
import re

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bertjax.data import records, value_masking
from data_pipelines import build_tables
from data_pipelines.values import value_records
from tests.data_pipelines import decoded

ROWS = 300


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    income = np.exp(rng.normal(size=ROWS))
    return {
        "income": [None if at % 17 == 3 else float(it) for at, it in enumerate(income)],
        "rooms": rng.integers(1, 9, ROWS).tolist(),
        "coast": [
            None if at % 31 == 5 else f"side {it}"
            for at, it in enumerate(rng.integers(0, 4, ROWS))
        ],
        "is_new": (rng.random(ROWS) < 0.3).tolist(),
        "built": [
            datetime.date(1990, 1, 1) + datetime.timedelta(int(it))
            for it in rng.integers(0, 9000, ROWS)
        ],
        "price": rng.normal(size=ROWS).tolist(),
    }  # fmt: skip


def write(path, table, **more):
    parquet.write_table(pyarrow.table({**table, **more}), path)
    return str(path)


def options(path, output, **changes):
    given = {"leave_out": "price", "scaling": "standard", "parts": "200,60,40"}
    return build_tables.Options(input=path, output=str(output), **(given | changes))


def rows_of(directory):
    rows = decoded.read(directory)
    return {name: rows[name][..., 0] for name in ("values", "observed")}


def test_copies_of_training_rows_in_other_parts_are_warned_of(tmp_path, table, caplog):
    build_tables.build(options(write(tmp_path / "t.parquet", table), tmp_path / "r"))
    assert "a training row" not in caplog.text
    twice = {name: [*cells[:250], *cells[:50]] for name, cells in table.items()}
    build_tables.build(options(write(tmp_path / "t.parquet", twice), tmp_path / "again"))
    said = [it for it in caplog.messages if "rows of the part" in it]
    assert [re.sub(r"\d+", "N", it)[:32] for it in said] == [
        "N of the N rows of the part held", "N of the N rows of the part test"
    ]  # fmt: skip
    assert all("have all cells of a training row. If they are copies, drop" in it for it in said)


def test_numbers_are_scaled_and_texts_numbered_by_the_training_part(tmp_path, table):
    manifests = build_tables.build(options(write(tmp_path / "t.parquet", table), tmp_path / "r"))
    assert [it.num_examples for it in manifests.values()] == [200, 60, 40]
    rows = rows_of(tmp_path / "r" / "train")
    columns = records.Manifest.load(tmp_path / "r" / "train").statistics["columns"]
    assert [it["kind"] for it in columns] == [
        "none", "number", "number", "category", "category", "number"
    ]  # fmt: skip
    assert columns[3]["categories"][0] == "[UNK]"
    assert sorted(columns[3]["categories"][1:]) == [f"side {n}" for n in range(4)]
    coast = rows["values"][:, 3][rows["observed"][:, 3] != 0].astype(int)
    counts = np.bincount(coast, minlength=5)
    assert counts[0] == 0 and (np.diff(counts[1:]) <= 0).all()  # the most frequent first
    assert (rows["observed"][:, 0] == 0).all() and (rows["observed"][:, 2] == 1).all()
    for at in (1, 2, 5):
        seen = rows["values"][:, at][rows["observed"][:, at] != 0]
        np.testing.assert_allclose([seen.mean(), seen.std()], [0, 1], atol=1e-5)
    parts = [rows_of(tmp_path / "r" / part) for part in value_records.PARTS]
    assert sum(part["observed"].sum(axis=0) for part in parts).tolist()[1:] == [
        ROWS - sum(it is None for it in table[name])
        for name in ("income", "rooms", "coast", "is_new", "built")
    ]
    whole = np.concatenate([part["values"] for part in parts])
    rooms = np.rint(whole[:, 2] * columns[2]["deviation"] + columns[2]["mean"])
    assert sorted(rooms) == sorted(table["rooms"])  # each row is in one part


def test_quantiles_between_the_least_and_the_most_are_those_of_scikit_learn(tmp_path, table):
    from sklearn import preprocessing

    path = write(tmp_path / "t.parquet", {"income": table["income"], "rooms": table["rooms"]})
    build_tables.build(options(path, tmp_path / "r", leave_out="", scaling="quantile", parts="300"))
    rows = rows_of(tmp_path / "r" / "train")
    for at, name in ((1, "income"), (2, "rooms")):
        cells = np.array([np.nan if it is None else it for it in table[name]], float)[:, None]
        count = int((~np.isnan(cells)).sum())
        transform = preprocessing.QuantileTransformer(
            n_quantiles=min(1000, count), output_distribution="normal", subsample=None
        )
        expected = transform.fit_transform(cells)
        is_inside = (cells > np.nanmin(cells)) & (cells < np.nanmax(cells))
        ours = np.sort(rows["values"][:, at][rows["observed"][:, at] != 0])
        inside = np.sort(expected[is_inside])
        first = int((cells == np.nanmin(cells)).sum())
        np.testing.assert_allclose(ours[first : first + len(inside)], inside, atol=1e-4)
        # At the ends there it is 5.2 deviations, here the middle of those that are equal.
        assert first == 1 or ours[0] > -2.5


def test_categories_that_training_has_not_are_unknown_and_warned_of(tmp_path, table, caplog):
    part = ["train"] * 200 + ["heldout"] * 100
    names = ["a" if at < 200 else "b" if at < 220 else "a" for at in range(ROWS)]
    path = write(tmp_path / "t.parquet", {"price": table["price"]}, name=names, part=part)
    build_tables.build(options(path, tmp_path / "r", part_column="part"))
    assert "20.00% of the cells of the column 'name' in the part heldout" in caplog.text
    rows = rows_of(tmp_path / "r" / "heldout")
    assert sorted(rows["values"][:, 1]) == [0] * 20 + [1] * 80


def test_whole_numbers_may_be_categories_and_groups_are_in_one_part(tmp_path, table):
    groups = [f"patient {at // 5}" for at in range(ROWS)]
    path = write(tmp_path / "t.parquet", table, who=groups, code=[at // 5 for at in range(ROWS)])
    given = {"categories": "rooms,code", "group_column": "who", "parts": "0.6,0.4"}
    build_tables.build(options(path, tmp_path / "r", **given))
    seen = {}
    for part in ("train", "heldout"):
        rows = rows_of(tmp_path / "r" / part)
        columns = records.Manifest.load(tmp_path / "r" / part).statistics["columns"]
        (at,) = [place for place, it in enumerate(columns) if it["name"] == "code"]
        seen[part] = {columns[at]["categories"][int(code)] for code in rows["values"][:, at]}
        assert columns[2]["kind"] == "category"
        assert "who" not in [it["name"] for it in columns]
    assert seen["heldout"] == {"[UNK]"} and 20 < len(seen["train"]) < 50


def test_cells_are_exchanged_for_training_cells_in_every_part(tmp_path, table):
    build_tables.build(options(write(tmp_path / "t.parquet", table), tmp_path / "r"))
    with np.load(tmp_path / "r" / "heldout" / value_masking.DONORS_FILE) as donors:
        stored = donors["values"][..., 0], donors["observed"][..., 0]
    trained = rows_of(tmp_path / "r" / "train")
    for column in range(6):
        assert sorted(stored[0][:, column]) == sorted(trained["values"][:, column])
    assert stored[1].sum() == trained["observed"].sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leave_out": "prize"}, "--leave_out is 'prize'; known are income"),
        ({"categories": "income"}, "--categories is 'income'"),
        ({"part_column": "coast"}, "is 'side 2'; parts are train"),
        ({"leave_out": "price,income,rooms,coast,is_new,built"}, "all columns .* are left out"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, table, changes, message):
    path = write(tmp_path / "t.parquet", table)
    with pytest.raises(ValueError, match=message):
        build_tables.build(options(path, tmp_path / "r", **changes))


def test_the_same_options_give_the_same_bytes_and_other_seeds_other_parts(tmp_path, table):
    path = write(tmp_path / "t.parquet", table)
    made = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        build_tables.build(dataclasses.replace(options(path, tmp_path / name), seed=seed))
        shards = sorted((tmp_path / name / "train").glob("*.tfrecord*"))
        made[name] = b"".join(it.read_bytes() for it in shards)
    assert made["a"] == made["b"] != made["c"]


def build(directory, name, text, **given):
    """Builds records of a CSV file with three columns; returns the lines of the report."""
    (directory / f"{name}.csv").write_text(text)
    report = []
    made = build_tables.Options(
        input=str(directory / f"{name}.csv"), output=str(directory / name), **given
    )
    build_tables.build(made, report.append)
    return report


TRAINING = "size,smoker,shop\n" + "".join(
    f"{at / 10},{at % 2 == 0},{('007', '115', '012')[at % 3]}\n" for at in range(60)
)


def test_new_rows_are_read_by_the_kinds_of_training_whatever_they_hold(tmp_path, caplog):
    build(tmp_path, "old", TRAINING + "0.1,unknown,A12\n", parts="1", scaling="none")
    like = str(tmp_path / "old" / "train")
    mixed = "size,smoker,shop\n1,True,007\n2,False,012\n3,unknown,A12\n"
    build(tmp_path, "mixed", mixed, like=like)
    codes = rows_of(tmp_path / "mixed")["values"]
    build(tmp_path, "plain", mixed[:-14], like=like)  # True and 007 alone, which look like types
    assert (rows_of(tmp_path / "plain")["values"] == codes[:2]).all()
    assert sorted(codes[:, 2]) == [1, 2, 3] and not caplog.messages
    typed = {"size": [1.0, 2.0], "smoker": ["True", "False"], "shop": [7, 12]}
    path = write(tmp_path / "typed.parquet", typed)
    with pytest.raises(ValueError, match=r"'shop' of .*typed.parquet holds int64, .* texts"):
        build_tables.build(build_tables.Options(input=path, output=str(tmp_path / "t"), like=like))


def test_true_and_whole_numbers_are_compared_by_value_with_columns_that_state_types(tmp_path):
    flags = {"a": [1.0, 2.0, 3.0], "on": [True, True, False], "code": [5, 5, 7]}
    path = write(tmp_path / "t.parquet", flags)
    given = {"parts": "1", "scaling": "none", "categories": "code"}
    build_tables.build(build_tables.Options(input=path, output=str(tmp_path / "old"), **given))
    like = str(tmp_path / "old" / "train")
    build(tmp_path, "new", "a,on,code\n1,TRUE,7\n2,false,5\n", like=like)
    assert rows_of(tmp_path / "new")["values"].tolist() == [[0, 1, 1, 2], [0, 2, 2, 1]]


def test_new_rows_unlike_all_of_training_are_warned_of_with_share_and_place(tmp_path, caplog):
    build(tmp_path, "old", TRAINING, parts="1")
    new = "size,smoker,shop\n0.5,True,115\n-6.1,True,Turku\n11.7,maybe,007\n"
    build(tmp_path, "new", new, like=str(tmp_path / "old" / "train"))
    said = [it for it in caplog.messages if "new.csv" in it]
    assert len(said) == 3  # 11.7 is within one range of the largest, 5.9
    for line, column in zip(said, ("'-6.1' in", "'maybe' in", "'Turku' in"), strict=True):
        assert "33.33%" in line and column in line
    assert f"{tmp_path / 'new.csv'}:3" in said[0]


def test_new_rows_take_the_texts_of_empty_cells_and_a_part_without_a_column_is_read(
    tmp_path, caplog
):
    build(tmp_path, "old", TRAINING + "-999,True,115\n", parts="1", missing="-999")
    like = str(tmp_path / "old" / "train")
    new = "size,smoker,shop\n-999,True,115\n,False,007\n"
    build(tmp_path, "new", new, like=like, parts="1", scaling="none")
    assert rows_of(tmp_path / "new" / "train")["observed"][:, 1].tolist() == [0, 0]
    assert "--scaling is 'none'" in caplog.text


def test_rows_without_a_group_are_groups_of_their_own(tmp_path, caplog):
    rows = [f"{at},{'' if at % 4 == 0 else f'p{at // 8}'}" for at in range(400)]
    build(tmp_path, "r", "\n".join(["x,who", *rows]), group_column="who")
    sizes = [records.Manifest.load(tmp_path / "r" / it).num_examples for it in value_records.PARTS]
    assert sum(sizes) == 400 and sizes[0] > 280 and min(sizes) > 15
    assert "100 of 400 rows (25.00%) have no 'who'" in caplog.text


def test_labels_of_other_rows_are_fitted_on_columns_of_a_pretraining(tmp_path):
    build(tmp_path, "old", TRAINING, parts="1", scaling="standard")
    like = str(tmp_path / "old" / "train")
    new = "size,smoker,shop,sold\n" + "".join(
        f"{at / 7},True,115,{('no', 'yes')[at % 3 == 0]}\n" for at in range(50)
    )
    build(tmp_path, "new", new, like=like, label="sold", parts="0.8,0.2")
    kept = records.Manifest.load(like).statistics
    made = [records.Manifest.load(tmp_path / "new" / it) for it in ("train", "heldout")]
    assert [it.num_examples for it in made] == [40, 10]
    for it in made:
        assert it.statistics["columns"] == kept["columns"]
        assert it.statistics["labels"] == {"kind": "classes", "names": ["no", "yes"]}
    again = {"like": str(tmp_path / "new" / "train")}
    build(tmp_path, "more", "size,smoker,shop,sold\n1,True,115,yes\n", **again)
    assert decoded.read(tmp_path / "more")["labels"].tolist() == [1]
    for option in ("leave_out", "categories"):
        with pytest.raises(ValueError, match=f"--{option} is 'shop'"):
            build(tmp_path, "no", TRAINING, like=like, **{option: "shop"})
    with pytest.raises(ValueError, match="--label is 'shop'"):
        build(tmp_path, "no", TRAINING, like=like, label="shop")


def test_what_float32_cannot_hold_is_refused_by_row(tmp_path):
    rows = TRAINING + "1e39,True,007\n"
    with pytest.raises(ValueError, match=r"'size' of .*r.csv:62 holds 1e39"):
        build(tmp_path, "r", rows, scaling="none", parts="1")
    with pytest.raises(ValueError, match=r"'size' of .*r.csv:62"):
        build(tmp_path, "r", rows, scaling="none", parts="1", label="size")
    assert not (tmp_path / "r").exists()


def test_the_report_says_of_each_column_how_it_was_read(tmp_path):
    constant = "\n".join(f"{line},0.1,{at}" for at, line in enumerate(TRAINING.split("\n")[1:-1]))
    report = build(
        tmp_path, "r", f"size,smoker,shop,c,n\n{constant}\n", parts="1", label="smoker",
        leave_out="n",
    )  # fmt: skip
    lines = {line.split()[0]: line for line in report if line.startswith("  ") and line[2] != " "}
    assert "number" in lines["size"] and "0.0 to 5.9" in lines["size"]
    assert "category" in lines["shop"] and "3 different" in lines["shop"]
    assert "left out" in lines["n"] and "label" in lines["smoker"]
    assert any("True: 50.00%" in line for line in report)
    assert any("c is the same in all rows" in line for line in report)
    ids = "\n".join(["x,id", *(f"{at % 7},k{at}" for at in range(60))])
    assert any("--leave_out=id" in line for line in build(tmp_path, "ids", ids, parts="1"))
    groups = "\n".join(["x,who", *(f"{at / 7},k{at // 2}" for at in range(60))])
    assert any("--group_column=who" in it for it in build(tmp_path, "groups", groups, parts="1"))
