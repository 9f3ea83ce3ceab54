"""Fixtures of the tests with transformers."""

import logging

import pytest


@pytest.fixture
def heard(caplog):
    """Whatever transformers logs; it hands nothing on to the root logger."""
    transformers = pytest.importorskip("transformers")
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    transformers.utils.logging.disable_progress_bar()
    yield caplog
    transformers.utils.logging.enable_progress_bar()
    logger.removeHandler(caplog.handler)
