"""Claims about JSON that is read back: each kind of a schema finds its faults, all at once."""

import pytest

from bertjax.options import schema

FIELDS = {
    "steps": schema.Whole(1, 9),
    "rate": float,
    "name": str,
    "is_done": bool,
    "shards": [{"rows": schema.Whole(0)}],
    "counts": {"*": int},
    "any": lambda value, name: [ValueError(f"{name} is odd")] if value else [],
}
GOOD = {
    "steps": 1, "rate": 2, "name": "a", "is_done": False, "shards": [{"rows": 0}, {"rows": 5}],
    "counts": {"a": 1}, "any": 0, "more": object(),
}  # fmt: skip


def found(value, **options):
    return [str(it) for it in schema.faults(value, FIELDS, "meta", **options)]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"steps": 0}, "meta.steps is 0; it must be a whole number, at least 1 and at most 9"),
        ({"steps": 10}, "meta.steps is 10; it must be"),
        ({"steps": True}, "meta.steps is True; it must be a whole number"),
        ({"rate": "1"}, "meta.rate is '1'; it must be a number"),
        ({"rate": True}, "meta.rate is True; it must be a number"),
        ({"name": 3}, "meta.name is 3; it must be a text"),
        ({"is_done": 0}, "meta.is_done is 0; it must be true or false"),
        ({"shards": {}}, "meta.shards is {}; it must be a list"),
        ({"shards": [{"rows": 1}, {"rows": -1}]}, "meta.shards[1].rows is -1; it must be"),
        ({"counts": {"a": 1, "b": 1.5}}, "meta.counts.b is 1.5; it must be a whole number"),
        ({"counts": []}, "meta.counts is []; it must be an object"),
        ({"any": 1}, "meta.any is odd"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_named(change, fault):
    assert not found(GOOD) and not found(GOOD, is_whole=True)
    (only,) = found(GOOD | change)
    assert only.startswith(fault)


def test_all_faults_come_at_once_and_missing_names_only_if_asked_for():
    assert len(found(GOOD | {"steps": 0, "name": 0, "shards": [{"rows": ""}] * 2})) == 4
    assert not found({"shards": [{}], "counts": None})
    missing = found({"shards": [{}], "counts": None}, is_whole=True)
    assert "meta.steps is missing" in missing and "meta.shards[0].rows is missing" in missing
    assert any(it.startswith("meta.counts is None") for it in missing)


def test_the_schema_of_a_sample_accepts_the_sample_and_its_types():
    of = schema.of({"a": 1, "b": (), "c": None, "d": {"*": 0.0}})
    assert not list(schema.faults({"a": 2, "b": [1], "c": "x", "d": {"e": 1.5}}, of, "config"))
    (fault,) = schema.faults({"a": 2, "d": {"e": "1.5"}}, of, "config")
    assert str(fault).startswith("config.d.e is '1.5'")
