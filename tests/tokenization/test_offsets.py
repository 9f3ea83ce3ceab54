import random
import unicodedata

import pytest

from bertjax.tokenization import offsets


def characters(placed: offsets.Placed) -> str:
    return "".join(character for character, _, _ in placed)


def is_mark(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


@pytest.mark.parametrize("form", ["NFD", "NFKD"])
@pytest.mark.parametrize("is_accent", [is_mark, "\u0301".__eq__])
def test_folding_in_place_is_the_folding_of_the_whole_text(form, is_accent):
    rng = random.Random(form)
    pool = [chr(code) for code in range(0x300, 0x370)] + list(
        "aÅΣﬁ각İ\u302e\u0f71\u0f74\ufe0f\u0344"
    )
    pool += [chr(rng.randrange(0x10000, 0x1E000)) for _ in range(50)]
    for _ in range(500):
        text = "".join(rng.choices(pool, k=12))
        placed = offsets.placed(text)
        whole = "".join(filter(lambda c: not is_accent(c), unicodedata.normalize(form, text)))
        assert characters(offsets.without_accents(placed, form, is_accent)) == whole
        lowered = characters(offsets.lowered(placed))
        assert lowered == text.lower().replace("ς", "σ")


def test_an_accent_goes_to_the_character_that_it_stands_on():
    stripped = offsets.without_accents(offsets.placed("xé\u0323y"), "NFD", is_mark)
    assert stripped == [("x", 0, 1), ("e", 1, 3), ("y", 3, 4)]
    # A mark that stays stands between, although the other one comes first in the normal form.
    stripped = offsets.without_accents(offsets.placed("x\u302e\u0323"), "NFD", is_mark)
    assert stripped == [("x", 0, 1), ("\u302e", 1, 3)]
    # One that stands on nothing has no place.
    stripped = offsets.without_accents(offsets.placed("\u0301 \u0301a"), "NFD", is_mark)
    assert stripped == [(" ", 1, 2), ("a", 3, 4)]
    # A character that becomes several gives them its place.
    assert offsets.lowered(offsets.placed("aİ")) == [("a", 0, 1), ("i", 1, 2), ("\u0307", 1, 2)]
