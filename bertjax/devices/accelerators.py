"""Peak matrix throughput and memory of each kind of JAX device.

`jax.devices()` lists devices. A device is a whole chip, except for TPU v2, v3 and v7x, where it is
one of the chip's two cores; these rows have half of the chip's numbers (two cores share the ports
as well). Prices and slice topologies belong to `plan`.
"""

from __future__ import annotations

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """One JAX device: dense bfloat16 FLOP/s at its peak, bytes of memory, devices on its chip.

    `flops` is float16 on devices without bfloat16 units (V100, T4). `clock_hz` turns the cycles of
    the TPU compiler's estimate into seconds. `memory_rate` is the bandwidth of its memory, and
    `port_rate` the bandwidth of a port to a neighbouring chip, in bytes a second.
    """

    flops: float
    memory_bytes: int
    devices_per_chip: int = 1
    clock_hz: float | None = None
    memory_rate: float | None = None
    port_rate: float | None = None


# Sources of the TPU rows: docs.cloud.google.com/tpu, pages v2 to v6e and tpu7x (v3: 123 TFLOP/s a
# chip; jax/_src/pallas/mosaic/tpu_info.py and the scaling book say 140). The two spellings of v5e,
# v5p and v6e are in tpu_info.py.
#
# Clocks: peak FLOP/s of a device over its FLOPs per cycle, rounded. A matrix unit of 128x128 makes
# 32,768 FLOPs a cycle; a device has 1 unit (v2), 2 (v3), 4 (v5e) or 8 (v4 and v5p: two cores).
# Published is 1.5 GHz for v5e (scaling book, tpus.md). From memory and not looked up: v2 700 MHz,
# v3 940 MHz (Jouppi et al. 2020), v4 1050 MHz (Jouppi et al. 2023). v5p stands on the division
# alone. Less sure are v6e and TPU7x: tpu_info.py lists two units of 256x256 a core, which would
# make 3.5 and 4.4 GHz, but libtpu 0.0.42.1 estimates a 4096^3 product at 455,700 (v6e) and 434,500
# (TPU7x core) FLOPs a cycle, so 524,288 at their peak: 1.75 and 2.2 GHz. For the others its
# estimate is 88 to 98% of the FLOPs a cycle taken here (4096^3).
#
# Rates: the same pages. The ports have half of the "bidirectional inter-chip interconnect bandwidth
# per chip" (v5e 400 GB/s, v5p 1,200, v6e 800, TPU7x 1,200; read 2026-11-23 for v5e and v5p, the
# others from memory) over four ports, or six (v4, v5p, TPU7x). From memory too: v4 2,400 Gbit/s a
# chip, v2 and v3 496 and 656 Gbit/s a port (Jouppi et al. 2020), memory of v2, v3, v4 and TPU7x.
_TPU_V5E = Accelerator(197e12, 16 * GIB, clock_hz=1.5e9, memory_rate=819e9, port_rate=50e9)
_TPU_V5P = Accelerator(459e12, 95 * GIB, clock_hz=1.75e9, memory_rate=2765e9, port_rate=100e9)
_TPU_V6E = Accelerator(918e12, 32 * GIB, clock_hz=1.75e9, memory_rate=1640e9, port_rate=100e9)

# GPU rows, without sparsity: NVIDIA's data sheets, H100, H200 and A100 as in their sources, the
# others from memory and not looked up: V100 and T4 (2018), A100
# (2021), L4 and L40S (2023), H100 (2023: SXM5 989.4, PCIe 756 TFLOP/s), H200 (2024, as H100 SXM).
_V100_FLOPS = 125e12
_A100_FLOPS = 312e12
_H100_FLOPS = 989.4e12

# By the `device_kind` of jax.Device.
ACCELERATORS: dict[str, Accelerator] = {
    "TPU v2": Accelerator(
        *(45e12 / 2, 8 * GIB),
        devices_per_chip=2,
        clock_hz=0.7e9,
        memory_rate=700e9 / 2,
        port_rate=62e9 / 2,
    ),
    "TPU v3": Accelerator(
        *(123e12 / 2, 16 * GIB),
        devices_per_chip=2,
        clock_hz=0.94e9,
        memory_rate=900e9 / 2,
        port_rate=82e9 / 2,
    ),
    "TPU v4": Accelerator(275e12, 32 * GIB, clock_hz=1.05e9, memory_rate=1228e9, port_rate=50e9),
    "TPU v5 lite": _TPU_V5E,
    "TPU v5e": _TPU_V5E,
    "TPU v5": _TPU_V5P,
    "TPU v5p": _TPU_V5P,
    "TPU v6 lite": _TPU_V6E,
    "TPU v6e": _TPU_V6E,
    "TPU7x": Accelerator(
        *(2307e12 / 2, 96 * GIB),
        devices_per_chip=2,
        clock_hz=2.2e9,
        memory_rate=7380e9 / 2,
        port_rate=100e9 / 2,
    ),
    "Tesla T4": Accelerator(65e12, 16 * GIB),
    "Tesla V100-SXM2-16GB": Accelerator(_V100_FLOPS, 16 * GIB),
    "Tesla V100-SXM2-32GB": Accelerator(_V100_FLOPS, 32 * GIB),
    "NVIDIA L4": Accelerator(121e12, 24 * GIB),
    "NVIDIA L40S": Accelerator(362e12, 48 * GIB),
    "NVIDIA A100-SXM4-40GB": Accelerator(_A100_FLOPS, 40 * GIB),
    "NVIDIA A100-PCIE-40GB": Accelerator(_A100_FLOPS, 40 * GIB),
    "NVIDIA A100-SXM4-80GB": Accelerator(_A100_FLOPS, 80 * GIB),
    "NVIDIA A100 80GB PCIe": Accelerator(_A100_FLOPS, 80 * GIB),
    "NVIDIA H100 PCIe": Accelerator(756e12, 80 * GIB),
    "NVIDIA H100 80GB HBM3": Accelerator(_H100_FLOPS, 80 * GIB),
    "NVIDIA H200": Accelerator(_H100_FLOPS, 141 * 10**9),
}


def peak_flops(device_kind: str) -> float | None:
    """Returns the dense bfloat16 FLOP/s of one JAX device, None for an unknown kind.

    A CPU is unknown: its peak depends on clock, vector units and cores in use.
    """
    accelerator = ACCELERATORS.get(device_kind)
    return accelerator.flops if accelerator else None


def memory_bytes(device_kind: str) -> int | None:
    """Returns the bytes of memory of one JAX device, None for an unknown kind."""
    accelerator = ACCELERATORS.get(device_kind)
    return accelerator.memory_bytes if accelerator else None


def clock_hz(device_kind: str) -> float | None:
    """Returns the cycles per second of one TPU device, None for other kinds."""
    accelerator = ACCELERATORS.get(device_kind)
    return accelerator.clock_hz if accelerator else None
