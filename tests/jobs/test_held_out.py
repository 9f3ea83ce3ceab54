"""Claims about the scores of chance that come from the training part."""

import numpy as np
import pytest

from bertjax.jobs import held_out

COLUMNS = (0, 3, 0, 2)  # [CLS], a column of three categories, a number, one of two


def rows(codes, others):
    values = np.stack([np.zeros(len(codes)), codes, np.full(len(codes), 0.5), others], axis=1)
    return values[:, :, None].astype(np.float32)


def test_hidden_categories_are_predicted_by_the_frequencies_of_their_training_column():
    training = rows([1, 1, 1, 2, 2, 0], [1, 1, 1, 0, 0, 0])
    observed = np.ones_like(training, np.int32)
    observed[5, 1] = 0  # so the training part has no category 0
    hidden = np.array([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 1]])
    batch = {"values": rows([1, 2, 1, 0], [1, 0, 0, 1]), "hidden": hidden}
    batch["example_weights"] = np.array([1.0, 1.0, 1.0, 0.0])
    # Five cells are observed; Witten-Bell adds two for the category that is not among them.
    losses = [-np.log(3 / 7), -np.log(2 / 7), -np.log(0.5), -np.log(0.5)]
    for batches in ([batch], [{name: it[:1] for name, it in batch.items()},
                              {name: it[1:] for name, it in batch.items()}]):  # fmt: skip
        found = held_out.category_frequencies(COLUMNS, (training, observed), batches)
        assert found == {"frequencies_loss": pytest.approx(np.mean(losses), rel=1e-6)}
    hidden[:, [1, 3]] = 0
    assert held_out.category_frequencies(COLUMNS, (training, observed), [batch]) == {}
