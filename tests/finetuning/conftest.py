"""Kinds of data sets over small files."""

import pytest

from bertjax import finetuning
from tests import small_datasets, small_records


@pytest.fixture
def open_kind(tmp_path):
    """Returns a scorer and its reader over new files of one of small_datasets.KINDS."""

    def opened(kind="glue", /, **changes):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        options = small_datasets.make_config(directory, kind, "no weights").finetuning
        options.update(changes)
        scorer = finetuning.KINDS[options.dataset].open(options, small_records.vocabulary())
        assert not list(scorer.reader.missing())
        return scorer, scorer.reader

    return opened
