"""Claims about the parts of a model: which head they make, and the choice of another head."""

import dataclasses

import pytest

from bertjax.convert import heads, pretrained
from tests.convert import weights


def parts(made):
    return {path.split(".")[0] for path in made.params}


def test_the_chosen_head_has_its_parts_and_the_rest_is_unused():
    for head, chosen, wanted in (
        ("pretraining", "masked_lm", {"encoder", "mlm_head"}),
        ("pretraining", "none", {"encoder", "pooler"}),
        ("masked_lm", "none", {"encoder"}),
        ("sequence_classification", "none", {"encoder", "pooler"}),
        ("sequence_classification", "token_classification", {"encoder", "pooler", "classifier"}),
        ("pretraining", "next_sentence", {"encoder", "pooler", "nsp_head"}),
        ("multiple_choice", "sequence_classification", {"encoder", "pooler", "classifier"}),
        ("pretraining", "pretraining", {"encoder", "pooler", "mlm_head", "nsp_head"}),
    ):
        made = weights.make(head)
        selected = pretrained.select(made, chosen)
        assert selected.head == chosen and parts(selected) == wanted
        assert set(selected.params) | set(selected.unused) == set(made.params)
        for path, array in selected.params.items():
            assert array.tobytes() == made.params[path].tobytes()
    for head in heads.HEADS:
        # One has the parts of a classifier, the other a decoder of another width.
        if head not in ("multiple_choice", "masked_autoencoder"):
            assert heads.of_paths(weights.make(head).params) == head


def test_labels_go_with_the_classifier():
    made = weights.make("sequence_classification")
    assert pretrained.select(made, "token_classification").labels == weights.LABELS
    assert pretrained.select(made, "none").labels == {}
    choice = pretrained.select(weights.make("multiple_choice"), "sequence_classification")
    assert choice.labels == {0: "LABEL_0"}
    regression = dataclasses.replace(choice, labels={0: "score"})
    assert pretrained.select(regression, "multiple_choice").labels == {}


def test_a_head_that_the_weights_cannot_make_is_refused():
    for head, chosen, said in (
        ("masked_lm", "pretraining", "has no pooler, nsp_head, .* its own head is 'masked_lm'"),
        ("none", "question_answering", "has no span_head"),
        ("sequence_classification", "multiple_choice", "has 3 outputs for a sequence"),
        ("none", "tail", "head is 'tail'; known are .*pretraining"),
    ):
        with pytest.raises(ValueError, match=said):
            pretrained.select(weights.make(head), chosen)
