"""What the host does between two steps: its time per step in the real loop, at configs/smoke.py.

    python benchmarks/host_overhead.py [--steps=1000]

Runs `bertjax.train.train` itself, with one change: the compiled step is replaced by one of the same
signature, shardings and donation that computes next to nothing. Then the time from one call of the
step to the next is the host's. Target: under 2 ms.

Counted: making the batch (synthetic, in this thread: records come from other threads), its way to
the device, flattening and dispatching the call, fetching the report of the step before, the
monitor with a line of metrics every `log_every_steps`, and asking whether a notice has come. Not
counted: the device's own time, evaluation, and saving, which happen every so many steps.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import ml_collections
from absl import logging
from ml_collections import config_flags  # noqa: F401  what bertjax.train reads recipes with

from bertjax import evaluate, monitor, state, train

SMOKE = pathlib.Path(__file__).parents[1] / "configs" / "smoke.py"
TARGET_MS = 2.0
WARM_UP_STEPS = 50
