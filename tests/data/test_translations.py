import numpy as np
import pytest

from bertjax.data import translations
from tests import small_records

SEGMENTS = np.array([[0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1, 1]])
PACKED = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 2, 2, 2, 2]])


def places(segments, numbers):
    """Returns the positions of a row's tokens that belong to a sequence, one after the other."""
    counted, before = [], None
    for segment, number in zip(segments, numbers, strict=True):
        if (segment, number) != before:
            position = int(segment == 1)
        counted.append(position)
        position, before = position + 1, (segment, number)
    return counted


@pytest.mark.parametrize("name", ["input_mask", "sequence_ids"])
def test_positions_begin_anew_in_each_text_of_each_sequence(name):
    numbers = PACKED if name == "sequence_ids" else np.minimum(PACKED, 1)
    segments = SEGMENTS if name == "sequence_ids" else SEGMENTS[:2]
    numbers = numbers[: len(segments)]
    found = translations.positions({"segment_ids": segments, name: numbers})
    expected = [places(*row) for row in zip(segments, numbers, strict=True)]
    np.testing.assert_array_equal(found[numbers > 0], np.array(expected)[numbers > 0])
    assert found.max() < segments.shape[1] and found.min() == 0 and found.dtype == np.int32


def test_a_word_and_its_translation_have_the_same_position():
    found = translations.positions({"segment_ids": SEGMENTS[:1], "input_mask": PACKED[:1]})
    # [CLS] un mot [SEP]... would be 0 1 2 3: here two tokens, a separator and two tokens.
    assert found[0, :5].tolist() == [0, 1, 2, 1, 2]


def test_text_of_one_language_keeps_its_places():
    found = translations.positions({"segment_ids": SEGMENTS[1:2], "sequence_ids": PACKED[1:2]})
    assert found[0, :6].tolist() == [0, 1, 2, 0, 1, 2]


def test_a_token_has_the_language_of_its_text():
    numbers = np.array([[4, 2], [3, 3], [0, 1]])
    found = translations.token_languages(numbers, {"segment_ids": SEGMENTS})
    assert found.tolist() == [[4, 4, 4, 2, 2, 4, 4], [3] * 7, [0, 0, 1, 0, 0, 1, 1]]


def test_names_with_two_languages_tell_translations():
    figures = dict.fromkeys(("documents", "tokens", "bytes", "examples"), 1)
    for names, expected in [(["en", "zh-Hant"], False), (["en", "en+zh-Hant"], True), ([], False)]:
        manifest = small_records.manifest(languages=dict.fromkeys(names, figures))
        assert translations.are_in(manifest) == expected
    assert translations.languages("en+zh-Hant") == ["en", "zh-Hant"]
