"""Named sets of XLA options for TPU, the values of config.xla_preset; by default none.

A preset changes how a step is compiled, not what it computes; only `rbg_unsafe` changes the dropout
masks. Whether a preset helps depends on model, slice and compiler: `python -m bertjax.plan`
compares the compiler's estimates, a short run the time.

Source: MaxText publishes the names and groups of options (benchmarks/xla_flags_library.py, commit
05d3525e, read 2026-11-21); it says that they were beneficial "in certain cases" and that some are
on by default. `double_vmem` is our value (docs/performance.md); `rbg_unsafe`: jax.random's
documentation, "Advanced RNG configuration".
"""

from __future__ import annotations

from absl import logging

CompilerOptions = dict[str, bool | int | str]

_ASYNC_FUSION: CompilerOptions = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
}

PRESETS: dict[str, CompilerOptions] = {
    "none": {},
    # Gradients' sum overlapped with computation: data parallelism inside a slice (v5p, v6e).
    "async_all_reduce": _ASYNC_FUSION
    | {
        "xla_enable_async_all_reduce": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    },
    # Parameters' collection overlapped with computation: fsdp inside a slice (v5p, v6e).
    "async_all_gather": _ASYNC_FUSION
    | {
        "xla_enable_async_all_gather": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    },
    # Gradients' sum between slices, over the data-center network.
    "several_slices": {
        "xla_tpu_enable_data_parallel_all_reduce_opt": True,
        "xla_tpu_data_parallel_opt_different_sized_ops": True,
    },
    # One fusion may use 32 of the 128 MiB of vector memory, twice the default of v5e.
    "double_vmem": {"xla_tpu_scoped_vmem_limit_kib": 32768},
    # More of it, for v6e.
    "large_vmem": {"xla_tpu_scoped_vmem_limit_kib": 98304},
    # Each device draws its own part of `rbg` bits: fast under sharding, but the masks then depend
    # on the mesh.
    "rbg_unsafe": {"xla_tpu_spmd_rng_bit_generator_unsafe": True},
}


def compiler_options(name: str, platform: str) -> CompilerOptions | None:
    """Returns the argument of `jax.jit(compiler_options=...)`, None without options.

    Presets are for TPU: on other platforms they are left out, with a warning.
    """
    if name != "none" and platform != "tpu":
        logging.warning("config.xla_preset is %s, for TPU; it is left out on %s", name, platform)
        return None
    return PRESETS[name] or None
