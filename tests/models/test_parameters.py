"""Rules: first match wins, and nothing is left uncovered or unused."""

import pytest

from bertjax.models import parameters

TREE = {"layers": {"0": {"kernel": 1, "bias": 2}}, "norm": {"scale": 3}}


def test_first_matching_rule_wins():
    assigned = parameters.assign([(r".*kernel", "a"), (r".*", "b")], TREE, table="t")
    assert assigned == {"layers": {"0": {"kernel": "a", "bias": "b"}}, "norm": {"scale": "b"}}


def test_unmatched_parameters_and_unused_rules_are_all_named():
    with pytest.raises(ValueError) as caught:
        parameters.assign([(r".*kernel", 0), (r".*embedding", 1)], TREE, table="decay")
    for part in ("decay", "layers.0.bias", "norm.scale", ".*embedding"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match=r"no rule matches parameter layers\.0\.bias"):
        parameters.assign([(r"layers\.0", "a"), (r".*(kernel|scale)", "b")], TREE, table="t")
    with pytest.raises(ValueError, match=r"'\.\*bias' matches no parameter that an earlier"):
        parameters.assign([(r".*", 0), (r".*bias", 1)], TREE, table="t")
