"""Kinds of data sets over small files."""

import pytest

from bertjax import finetuning
from tests import small_datasets, small_records


@pytest.fixture
def open_kind(tmp_path):
    """Returns a kind over new files of one of small_datasets.KINDS, with changes of its options."""

    def opened(kind="glue", /, **changes):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        options = small_datasets.make_config(directory, kind, "no weights").finetuning
        options.update(changes)
        made = finetuning.KINDS[options.dataset](options, small_records.vocabulary())
        made.check()
        return made

    return opened
