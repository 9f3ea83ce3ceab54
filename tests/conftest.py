"""The strictest JAX there is: fake devices, no implicit rank promotion; and what tests share."""

import ctypes
import gc
import os
import pathlib
import signal
import sys
import tempfile
import typing
from collections.abc import Iterator

import jax
from jax._src import lru_cache
from jax._src.interpreters import partial_eval

from tests import checked_types  # noqa: F401  pyproject.toml names it

# Sixteen, so that the mesh of BERT-large exists; most tests take the first eight or one.
jax.config.update("jax_num_cpu_devices", 16)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Flax asks each number that is traced for its sharding. JAX refuses, and prints whole programs for
# the message, which nobody reads: a twentieth of what building a model takes.
partial_eval.DynamicJaxprTracer._origin_msg = lambda self: ""

# Before JAX keeps a program it reads about all that it has kept, for its limit, under a lock: a
# tenth of a second with 250 of them. The quick suite keeps hundreds.
lru_cache.LRUCache._evict_if_needed = lambda self, *, additional_size=0: None

import jax.numpy as jnp  # noqa: E402  the configuration must come before JAX starts
import numpy as np  # noqa: E402
import psutil  # noqa: E402
import pytest  # noqa: E402

from bertjax.data import records, synthetic  # noqa: E402
from bertjax.models import EncoderConfig  # noqa: E402
from bertjax.tokenization import normalization, spelled_rules, wordpiece  # noqa: E402
from tests import made_once, small_datasets  # noqa: E402

# A rule of one character has no shape. The export of a tokenizer asks it of a million characters,
# and checks of the types take ten times as long.
for _module in (normalization, spelled_rules, wordpiece):
    for _function in vars(_module).values():
        if {"character", "code_point"} & {*getattr(_function, "__annotations__", ())}:
            typing.no_type_check(_function)

# A shell has its background processes ignore Ctrl-C, and nohup a hangup; tests send both.
for _number, _handler in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}.items():
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

TINY = EncoderConfig(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)

# XLA's newer emitters of fusions take twice as long to compile, and compute the same. A small
# program is compiled sooner in one piece than in many. What a user's programs are compiled with is
# run by the quickstart of .ci/run.
QUICK_XLA_FLAGS = "--xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 12):  # which has the newer ones alone
    QUICK_XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"
# How a program becomes machine code after it is split over devices, in a fifth of the time.
QUICK_COMPILER: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_parallel_codegen_split_count": "1",
} | ({"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 12) else {})
QUICK_TESTS = "not slow and not faults"  # the -m of pyproject.toml
MOST_BYTES = 1_200_000_000  # of a process alone, between two files


def pytest_configure(config: pytest.Config) -> None:
    """Shares among the processes of a session what is compiled, and what tests make once."""
    if hasattr(config, "workerinput"):  # A worker of xdist has the environment of its parent.
        return
    directory = tempfile.TemporaryDirectory(prefix="bertjax_compiled_")
    config.add_cleanup(directory.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = directory.name
    made = tempfile.TemporaryDirectory(prefix="bertjax_made_once_")
    config.add_cleanup(made.cleanup)
    os.environ[made_once.VARIABLE] = made.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    # With a limit, and only then, JAX locks its files: none is read while another writes it.
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**30)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_XLA_FLAGS}".strip()
    if config.option.markexpr.strip() == QUICK_TESTS:
        # Compiling is most of what the quick tests do. This takes a third of the time off it, and
        # gives the same numbers but for rounding. The slow tests are optimized as users' runs are,
        # but for those with `quick_runs`.
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        is_quick = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"
        jax.config.update("jax_disable_most_optimizations", is_quick)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves weekly tests to `-m weekly`; refuses marks of which one says that the gate runs it."""
    both = [
        item.nodeid
        for item in items
        if {"slow", "faults"} <= {it.name for it in item.iter_markers()}
    ]
    if both:
        raise pytest.UsageError("marked slow and faults: " + ", ".join(both))
    if "weekly" not in config.option.markexpr:
        weekly = [item for item in items if item.get_closest_marker("weekly")]
        config.hook.pytest_deselected(items=weekly)
        items[:] = [item for item in items if not item.get_closest_marker("weekly")]


def pytest_collection_finish() -> None:
    """Leaves what is imported by now out of every later look for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # objects of JAX are many, and live long


@pytest.fixture(scope="module")
def quick_runs() -> Iterator[None]:
    """Takes from whole runs what lasts longer than their steps: optimized code, drawn curves."""
    from matplotlib import figure

    from bertjax.training import writers

    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "draw_curves", lambda entries: figure.Figure((0.1, 0.1)))
        yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module", autouse=True)
def memory_of_a_file() -> Iterator[None]:
    """Gives back, after each file, what compiling left, and what was compiled once it is a lot."""
    yield
    _return_freed_memory()
    memory = psutil.Process().memory_info()
    # Half of a gigabyte is code of libraries, which the processes of a session have in common.
    if memory.rss - getattr(memory, "shared", 0) > MOST_BYTES:
        jax.clear_caches()
        gc.collect()
        _return_freed_memory()


def _return_freed_memory() -> None:
    # glibc keeps what the compiler frees: half of all that a process holds after some files.
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def tiny() -> EncoderConfig:
    """A BERT small enough for everything, without dropout."""
    return TINY


def make_batch() -> dict[str, jax.Array]:
    """Sixteen rows of 16 tokens with 4 masked positions, unequal lengths and mask counts."""
    rng = np.random.default_rng(0)
    made = next(
        synthetic.train_batches(
            records.text_features(max_predictions_per_seq=4, pair_objective="nsp"),
            global_batch_size=16,
            max_seq_length=16,
            vocab_size=TINY.vocab_size,
            seed=1,
        )
    )
    made["input_mask"] = (np.arange(16) < rng.integers(9, 17, (16, 1))).astype(np.int32)
    made["masked_lm_weights"] = (np.arange(4) < rng.integers(1, 5, (16, 1))).astype(np.float32)
    del made["record_positions"]
    return {name: jnp.asarray(values) for name, values in made.items()}


@pytest.fixture
def batch() -> dict[str, jax.Array]:
    """The batch of `make_batch`."""
    return make_batch()


@pytest.fixture
def one_device(monkeypatch) -> list[jax.Device]:
    """The only device that the tested code finds, for tests that are not about meshes."""
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    return devices


@pytest.fixture(scope="session")
def source() -> pathlib.Path:
    """Weights to finetune from, which tests read only."""
    return made_once.directory("source", small_datasets.write_source)
