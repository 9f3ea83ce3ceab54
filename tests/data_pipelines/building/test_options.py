import dataclasses

import pytest

from bertjax.data import masking
from data_pipelines import workers
from data_pipelines.building import options


def made(**changes):
    return options.Options(input="text.txt", vocabulary="vocab.txt", output="out", **changes)


def test_all_faults_are_named_together():
    changes = {
        "max_seq_length": 4,
        "max_predictions_per_seq": -1,
        "masked_lm_prob": 1.0,
        "short_seq_prob": 1.5,
        "dupe_factor": 0,
        "random_seed": -1,
        "num_shards": -1,
        "num_workers": -1,
        "heldout_fraction": 1.0,
        "algorithm": "quick",
        "pair_objective": "nps",
        "packing": "tight",
        "mask": "words",
        "split": "half",
        "sentence_splitter": "magic",
    }
    with pytest.raises(ValueError) as error:
        options.checked(made(**changes))
    for name, value in changes.items():
        assert f"{name} is {value!r}; it must be" in str(error.value)
    assert "one of nsp, sop, none" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"balanced_nsp": True, "pair_objective": "sop"},
            "balanced_nsp is True.* nsp, not .*'sop'",
        ),
        ({"packing": "full_sentences"}, "'full_sentences'.*pair_objective none"),
        ({"mask": "span", "do_whole_word_mask": True}, "do_whole_word_mask"),
        ({"max_sequences_per_row": 4}, "max_sequences_per_row is 4.*--packing=best_fit"),
        ({"max_sequences_per_row": 1, "packing": "best_fit"}, "1; it must be at least 2, or 0"),
        ({"segmenter": "words"}, "segmenter is 'words'; it must be one of voc"),
        ({"segmenter": "characters"}, "mask 'token' .*: set mask to whole_word"),
        *(
            ({"algorithm": "exact", name: value}, f"{name} is {value!r}, but algorithm exact only")
            for name, value in {
                "packing": "best_fit",
                "mask": "span",
                "sentence_splitter": "rules",
                "split": "train",
                "segmenter": "icu",
                "deduplicate": "lines",
                "sentence_ends": True,
            }.items()
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        options.checked(made(**changes))


def test_the_released_name_of_whole_word_masking_is_the_same_option():
    alias = options.checked(made(do_whole_word_mask=True))
    assert alias == options.checked(made(mask="whole_word"))
    assert alias.content() == options.checked(made(mask="whole_word")).content()
    assert options.checked(made(mask="whole_word", do_whole_word_mask=True)) == alias


def test_defaults_are_those_of_bert_at_every_length():
    for length, predictions in ((128, 20), (512, 77)):
        checked = options.checked(made(max_seq_length=length))
        assert checked.max_predictions_per_seq == predictions
        assert checked.masking == masking.MaskingOptions(0.15, predictions, "token")
        assert checked.num_workers == workers.available_cores()
    chosen = options.checked(made(max_predictions_per_seq=7, num_workers=3))
    assert chosen.max_predictions_per_seq == 7 and chosen.num_workers == 3
    without = options.checked(made(mask="none", max_predictions_per_seq=7))
    assert without.max_predictions_per_seq == 0 and without.masking is None
    assert options.checked(chosen) == chosen


def test_where_and_how_quickly_is_not_content():
    elsewhere = made(num_workers=5, overwrite=True, scratch="/fast", strict=True)
    elsewhere = dataclasses.replace(elsewhere, output="elsewhere")
    assert elsewhere.content() == made().content()
    for name, value in (("random_seed", 1), ("split", "train"), ("mask", "ngram")):
        assert made(**{name: value}).content() != made().content()


def test_every_step_gets_its_options():
    chosen = made(
        max_seq_length=64,
        pair_objective="none",
        packing="full_sentences",
        short_seq_prob=0.3,
        dupe_factor=4,
        random_seed=7,
        text_field="body",
        delimiter=";",
        split="heldout",
        heldout_fraction=0.4,
        one_document_per_file=True,
    )
    assert chosen.separates_documents
    for part in (chosen.pairs, chosen.reading):
        for field in dataclasses.fields(part):
            assert getattr(part, field.name) == getattr(chosen, field.name), field.name
    assert not made(pair_objective="none").separates_documents


def test_packed_rows_have_places_for_the_masks_of_all_their_examples():
    for pair_objective in ("nsp", "sop", "none"):
        checked = options.checked(
            made(max_seq_length=512, packing="best_fit", pair_objective=pair_objective)
        )
        assert checked.pairs.is_packed and checked.max_sequences_per_row == 32
        for lengths in ([10] * 32, [16] * 32, [3] * 32, [512], [17] * 30):
            masks = sum(max(1, round(length * 0.15)) for length in lengths)
            assert masks <= checked.max_predictions_per_seq < 77 + 20
