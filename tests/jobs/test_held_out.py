"""Claims about the scores of chance that come from the training part."""

import numpy as np
import pytest

from bertjax.jobs import held_out

COLUMNS = (0, 3, 0, 2)  # [CLS], a column of three categories, a number, one of two


def rows(codes, others, numbers):
    values = np.stack([np.zeros(len(codes)), codes, numbers, others], axis=1)
    return values[:, :, None].astype(np.float32)


def test_hidden_cells_are_predicted_by_mean_and_frequencies_of_their_training_column():
    training = rows([1, 1, 1, 2, 2, 0], [1, 1, 1, 0, 0, 0], [-5, -5, -5, -5, 2, 99])
    observed = np.ones_like(training, np.int32)
    observed[5, 1:3] = 0  # so the training part has no category 0, and the mean is -3.6
    hidden = np.array([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 1]])
    batch = {"values": rows([1, 2, 1, 0], [1, 0, 0, 1], [1, 2, -4, 8]), "hidden": hidden}
    batch["example_weights"] = np.array([1.0, 1.0, 1.0, 0.0])
    # Five cells are observed; Witten-Bell adds two for the category that is not among them.
    losses = [-np.log(3 / 7), -np.log(2 / 7), -np.log(0.5), -np.log(0.5)]
    expected = {
        "frequencies_loss": np.mean(losses),
        "mean_loss": (4.6**2 + 0.4**2) / 2,
        "mean_mae": (4.6 + 0.4) / 2,
    }
    first, others = (
        {name: it[part] for name, it in batch.items()} for part in (np.s_[:1], np.s_[1:])
    )
    for batches in ([batch], [first, others]):
        found = held_out.of_columns(COLUMNS, (training, observed), batches, np.square)
        assert found == pytest.approx(expected, rel=1e-6)
    hidden[:] = 0
    assert held_out.of_columns(COLUMNS, (training, observed), [batch], np.square) == {}
