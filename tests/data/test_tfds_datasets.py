"""Errors of opening TFDS datasets. Real ones are read in the tests of their readers."""

import types

import pytest

from bertjax.data import tfds_datasets


class Builder:
    """A dataset that was never prepared, unless `splits` are given."""

    data_dir = "directory"

    def __init__(self, error, **splits):
        self.info = types.SimpleNamespace(full_name="made/1.0.0", splits=splits)
        self.error = error

    def download_and_prepare(self):
        raise self.error


def test_a_dataset_that_cannot_be_opened_or_downloaded_is_an_error_that_says_what_to_do():
    for error in (ConnectionError("no route"), ImportError("no such parser")):
        message = f"made/1.0.0.*cannot be downloaded.*{error}.*go there$"
        with pytest.raises(ValueError, match=message):
            tfds_datasets.prepare(Builder(error), hint="go there")
    # A prepared dataset is not downloaded again.
    tfds_datasets.prepare(Builder(ConnectionError("no route"), train=1), hint="go there")
    with pytest.raises(ValueError, match="'tfds:no_such_dataset' is neither .*; give another$"):
        tfds_datasets.builder("no_such_dataset", hint="give another")
