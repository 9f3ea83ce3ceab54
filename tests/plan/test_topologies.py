from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import jax
import pytest

from bertjax.devices import accelerators
from bertjax.plan import topologies


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """`devices` sets variables for libtpu; they end with the test."""
    for name in ("TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)


SLICES = [
    ("v5e-1", "v5e:1x1", 1, 1, 1),
    ("v5e-8", "v5e:2x4", 8, 8, 1),
    ("v5e-16", "v5e:4x4", 16, 16, 4),
    ("v5litepod-16", "v5e:4x4", 16, 16, 4),
    ("V5E-256", "v5e:16x16", 256, 256, 64),
    ("v5e:2x2", "v5e:2x2", 4, 4, 1),
    ("v6e-256", "v6e:16x16", 256, 256, 64),
    # The number counts TensorCores; a chip has two, shown as one device or as two.
    ("v4-8", "v4:2x2x1", 4, 4, 1),
    ("v5p-8", "v5p:2x2x1", 4, 4, 1),
    ("v5:2x2x2", "v5p:2x2x2", 8, 8, 2),
    ("v2-8", "v2:2x2", 4, 8, 1),
    ("v3-32", "v3:4x4", 16, 32, 4),
    ("tpu7x-8", "tpu7x:2x2x1", 4, 8, 1),
    ("v5p:4x8x20", "v5p:4x8x20", 640, 640, 160),
]


def test_names_of_the_console_are_chips_devices_and_hosts():
    for name, topology, *counts in SLICES:
        found = topologies.parse(name)
        assert (found.name, found.topology) == (name, topology)
        assert [found.num_chips, found.num_devices, found.num_hosts] == counts
    found = topologies.parse("v5e-16", num_slices=3)
    counts = (found.num_slices, found.num_chips, found.num_devices, found.num_hosts)
    assert counts == (3, 48, 48, 12)


def test_a_device_of_every_known_name_has_memory_peak_clock_and_rates():
    for name in itertools.chain(*topologies.known().values()):
        accelerator = accelerators.ACCELERATORS[topologies.parse(name).device_kind]
        assert accelerator.memory_bytes and accelerator.flops
        assert accelerator.memory_rate and accelerator.port_rate
        # Peak FLOP/s over clock are the multipliers of the device: 1 to 16 units of 128x128.
        units = accelerator.flops / (accelerator.clock_hz or 0.0) / (2 * 128 * 128)
        assert units == pytest.approx(2 ** round(math.log2(units)), rel=0.03)


def test_a_chip_has_a_neighbour_at_each_port_that_counts():
    for name, ports in {
        "v5e-1": 0,
        "v5e-4": 2,
        "v5e-16": 2,  # four along each axis do not close to a ring
        "v5e-128": 3,  # 8 x 16: the second axis does
        "v5e-256": 4,
        "v4-8": 2,  # 2 x 2 x 1
        "v4-16": 3,
        "v5p-128": 6,  # a cube
        "v5p:4x4x2": 3,
    }.items():
        assert topologies.parse(name).num_ports == ports


KNOWN = r"it must be a gen.*v5e-1 \.\.\. v5e-256.*v5p-8"
SHAPE = "axes, the first two even"


def test_a_name_that_is_no_slice_is_refused_with_what_is_offered():
    unknown = ("v9-8", "v5e", "v5e-", "", "v5e-16x", "v5e:4", "h100-8", "v5e:0x4")
    misshapen = ("v5e:2x2x2", "v4:2x2", "v5e:3x4", "v4:1x2x1")
    messages = dict.fromkeys(unknown, KNOWN) | dict.fromkeys(misshapen, SHAPE)
    messages["v5e-12"] = "1, 4, 8, 16, 32, 64, 128, 256 chips"
    messages["v4-4"] = "8, 16, 32.*TensorCores"
    for name, message in messages.items():
        with pytest.raises(ValueError, match=message):
            topologies.parse(name)
    with pytest.raises(ValueError, match="num_slices is 0"):
        topologies.parse("v5e-4", num_slices=0)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (RuntimeError("JAX TPU support not installed"), ImportError,
         r"v5e-4 needs libtpu.*pip install 'bertjax\[plan\]'"),
        (jax.errors.JaxRuntimeError("ABORTED: error when accessing libtpu multi-process lockfile."),
         RuntimeError, "another process has libtpu open.*multi-process"),
        (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: Invalid TPU name"), ValueError,
         "does not make the topology v5e:2x2 of v5e-4: INVALID"),
    ],
)  # fmt: skip
def test_an_error_of_libtpu_says_what_to_do(monkeypatch, fault, error, message):
    def get_topology_desc(*unused_args, **unused_kwargs):
        raise fault

    monkeypatch.setattr(topologies.topologies, "get_topology_desc", get_topology_desc)
    with pytest.raises(error, match=message):
        topologies.devices(topologies.parse("v5e-4"))


CHECK_ALL = """
from bertjax.plan import topologies
for names in topologies.known().values():
    for name in names:
        expected = topologies.parse(name)
        found = topologies.devices(expected)
        hosts = [device.process_index for device in found]
        assert len(found) == expected.num_devices, name
        assert {device.device_kind for device in found} == {expected.device_kind}, name
        assert len(set(hosts)) == expected.num_hosts and hosts == sorted(hosts), name
found = topologies.devices(topologies.parse("v5e-16", num_slices=2))
assert [device.slice_index for device in found] == [0] * 16 + [1] * 16
"""


@pytest.mark.slow
def test_libtpu_makes_every_known_name_host_by_host():
    pytest.importorskip("libtpu")
    # A process of its own: libtpu lets go of its lock only when its process ends.
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", CHECK_ALL], check=True, env=environment)
