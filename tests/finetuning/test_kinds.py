"""Claims about every kind of data set: its best score is that of right answers."""

import numpy as np
import pytest

from tests import small_datasets


@pytest.mark.parametrize("name", small_datasets.KINDS)
def test_right_answers_have_the_best_score_and_wrong_ones_a_lower_one(open_kind, name):
    kind = open_kind(name)
    answers = small_datasets.true_answers(kind, "dev")
    best = 100.0 if name in ("squad_v1", "squad_v2", "conll") else 1.0
    assert kind.scores("dev", answers)[kind.best_score] == pytest.approx(best)
    shifted = {field: np.roll(array, 1, axis=0) for field, array in answers.items()}
    assert kind.scores("dev", shifted)[kind.best_score] < best
