"""Small modules in the syntax of libtpu 0.0.42, what stands in braces and is not read left out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bertjax.plan import hlo


def fusion(name, cycles, *, operation="jit(step)/jvp()/dot_general", calls="fused"):
    config = f'{{"flag_configs":[],"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    return (
        f"  %{name} = bf16[8,128]{{1,0:T(8,128)(2,1)S(1)}} fusion(%x), kind=kOutput, "
        f'calls=%{calls}, metadata={{op_name="{operation}" stack_frame_id=8}}, '
        f"backend_config={config}"
    )


# What is fused carries an estimate here, which must not count: it does not run on its own.
FUSED = """
%fused (p: bf16[8,128]) -> bf16[8,128] {
  %p = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %inner = bf16[8,128]{1,0:T(8,128)(2,1)} tanh(%p), backend_config={"estimated_cycles":"7"}
}
"""
HEAD = 'HloModule jit_step, is_scheduled=true, num_partitions=4\n\nFileNames\n1 "step.py"\n'


def module(*entry_lines, computations=""):
    return "\n".join(
        [
            HEAD + FUSED + computations,
            "ENTRY %main.3_spmd (x: bf16[8,128]) -> bf16[8,128] {",
            '  %x = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="x"}',
            *entry_lines,
            "  ROOT %end = bf16[8,128]{1,0:T(8,128)(2,1)} bitcast(%x)",
            "}",
        ]
    )


def loop(name, body_lines, *, start=0, limit=7, step=1, direction="LT", depth=""):
    """Returns a loop's computations and the lines that run it."""
    state = "(s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, /*index=2*/s32[]{:T(128)})"
    computations = f"""
%{name}_body (s: (s32[], bf16[8,128], s32[])) -> (s32[], bf16[8,128], s32[]) {{
  %one = s32[]{{:T(128)}} constant({step})
  %s = {state} parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%s), index=0
  %x = bf16[8,128]{{1,0:T(8,128)(2,1)}} get-tuple-element(%s), index=1
  %limit = s32[]{{:T(128)}} get-tuple-element(%s), index=2
  %next = s32[]{{:T(128)}} add(%i, %one), metadata={{op_name="jit(step)/while/body/add"}}
{chr(10).join(body_lines)}
  ROOT %state = {state} tuple(%next, %x, /*index=2*/%limit)
}}

%{name}_condition (s: (s32[], bf16[8,128], s32[])) -> pred[] {{
  %s = {state} parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%s), index=0
  %limit = s32[]{{:T(128)}} get-tuple-element(%s), index=2
  ROOT %lt = pred[]{{:T(512)}} compare(%i, %limit), direction={direction}
}}
"""
    run = [
        f"  %{name}_start = s32[]{{:T(128)}} constant({start})",
        f"  %{name}_copied = s32[]{{:T(128)}} copy(%{name}_start)",
        f"  %{name}_limit = s32[]{{:T(128)}} constant({limit})",
        f"  %{name}_init = {state} tuple(%{name}_copied, %x, /*index=2*/%{name}_limit)",
        f"  %{name} = {state} while(%{name}_init), condition=%{name}_condition, "
        f'body=%{name}_body, metadata={{op_name="jit(step)/while"}}',
    ]
    return computations, run


def test_a_fusion_counts_once_and_what_is_fused_not_at_all():
    analysis = hlo.analyze(module(fusion("a", 100), fusion("b", 20, operation="jit(step)/add")))
    assert analysis.cycles == 120
    assert analysis.cycles_by_operation == {"jit(step)/jvp()/dot_general": 100, "jit(step)/add": 20}
    assert analysis.cycles_by_opcode == {"fusion": 120}
    assert analysis.uncounted == {}


def test_a_loop_costs_its_trips_times_its_body():
    for start, limit, step, direction, trips in [
        *((0, 7, 1, "LT", 7), (2, 12, 1, "LT", 10), (0, 7, 2, "LT", 4), (0, 7, 1, "LE", 8)),
        *((7, 0, -1, "GT", 7), (7, 0, -1, "GE", 8), (0, 3, 1, "NE", 3), (5, 5, 1, "LT", 0)),
    ]:
        options = {"start": start, "limit": limit, "step": step, "direction": direction}
        computations, run = loop("scan", [fusion("a", 100)], **options)
        analysis = hlo.analyze(module(fusion("once", 3), *run, computations=computations))
        assert analysis.cycles == 3 + trips * 100
        assert analysis.uncounted == {}


def test_nested_loops_multiply_and_the_compilers_own_trip_count_wins():
    inner, run_inner = loop("inner", [fusion("a", 10)], limit=5)
    outer, run_outer = loop("outer", [fusion("b", 1), *run_inner], limit=3)
    analysis = hlo.analyze(module(*run_outer, computations=inner + outer))
    assert analysis.cycles == 3 * (1 + 5 * 10)
    run_outer[-1] += ', backend_config={"known_trip_count":{"n":"4"}}'
    analysis = hlo.analyze(module(*run_outer, computations=inner + outer))
    assert analysis.cycles == 4 * (1 + 5 * 10)


def test_a_step_inside_a_fusion_is_found():
    computations, run = loop("scan", [fusion("a", 100)], limit=6)
    computations = computations.replace(
        "s32[]{:T(128)} add(%i, %one)",
        "s32[]{:T(128)} fusion(%limit, %i), kind=kLoop, calls=%next2",
    )
    computations += """
%next2 (p0: s32[], p1: s32[]) -> s32[] {
  %p0 = s32[]{:T(128)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  %two = s32[]{:T(128)} constant(2)
  ROOT %sum = s32[]{:T(128)} add(%two, %p1)
}
"""
    assert hlo.analyze(module(*run, computations=computations)).cycles == 300


def test_a_loop_that_ends_by_its_data_counts_once_and_is_told():
    computations, run = loop("search", [fusion("a", 100)])
    run = [line.replace("constant(7)", "parameter(1)") for line in run]
    analysis = hlo.analyze(module(*run, computations=computations))
    assert analysis.cycles == 100
    assert analysis.uncounted == {hlo.UNKNOWN_TRIP_COUNT: 1}


def test_of_branches_the_most_expensive_counts_and_calls_count():
    branches = "".join(
        f"\n%{name} (x: bf16[8,128]) -> bf16[8,128] {{\n"
        "  %x = bf16[8,128]{1,0} parameter(0)\n"
        f"{fusion('a', cycles)}\n  ROOT %r = bf16[8,128]{{1,0}} bitcast(%a)\n}}\n"
        for name, cycles in (("small", 5), ("large", 50), ("sub", 1000))
    )
    analysis = hlo.analyze(
        module(
            "  %c = bf16[8,128]{1,0} conditional(%which, %x, %x), "
            "branch_computations={%small, %large}",
            "  %d = bf16[8,128]{1,0} conditional(%which, %x, %x), "
            "true_computation=%small, false_computation=%large",
            "  %e = bf16[8,128]{1,0} call(%x), to_apply=%sub",
            computations=branches,
        )
    )
    assert analysis.cycles == 50 + 50 + 1000


def test_what_has_no_estimate_is_told_by_name_and_bookkeeping_is_not():
    computations, run = loop(
        "scan",
        [
            '  %k = bf16[8,128]{1,0} custom-call(%x), custom_call_target="tpu_custom_call"',
            "  %bits = u32[64,128]{1,0} rng-bit-generator(%x), algorithm=rng_default",
            '  %b = bf16[8,128]{1,0} custom-call(), custom_call_target="AllocateBuffer"',
            "  %tiny = u32[1]{0:T(128)S(6)} xor(%i, %i)",
        ],
        limit=3,
    )
    copies = [
        "  %cs = (bf16[8,128]{1,0:S(1)}, bf16[8,128]{1,0}, u32[]{:S(2)}) copy-start(%x)",
        "  %cd = bf16[8,128]{1,0:S(1)} copy-done(%cs)",
    ]
    analysis = hlo.analyze(module(*copies, *run, computations=computations))
    assert analysis.cycles == 0
    assert analysis.uncounted == {"copy-start": 1, "tpu_custom_call": 3, "rng-bit-generator": 3}
    # A copy that runs beside computation is not counted; the kernel reads and writes a matrix, the
    # generator reads one and writes bits, three times.
    assert analysis.uncounted_bytes == 3 * (2 * 2048 + 2048 + 4 * 64 * 128)


def test_the_largest_number_is_no_estimate():
    """The compiler's own, of softmax over 8,192 keys: a plan of 10**12 years would follow."""
    analysis = hlo.analyze(module(fusion("a", 50), fusion("b", 2**63 - 1)))
    assert (analysis.cycles, dict(analysis.uncounted)) == (50, {"fusion (dot_general)": 1})


COLLECTIVES = [
    ("  %a = f32[30522,768]{1,0:T(8,128)} all-reduce(%g), channel_id=1, "
     "replica_groups=mesh['axis_0'=4,'axis_1'=1] {'axis_0'}, to_apply=%add",
     hlo.Collective("all-reduce", 1, 30522 * 768 * 4, 30522 * 768 * 4 * 3 / 2)),
    ("  %a = (f32[30522,768]{1,0}, bf16[128]{0}) all-reduce(%g, %h), to_apply=%add",
     hlo.Collective("all-reduce", 1, 30522 * 768 * 4 + 256, (30522 * 768 * 4 + 256) * 3 / 2)),
    ("  %a = bf16[1024,1024]{1,0} all-gather(%w), replica_groups={{0,1},{2,3}}, dimensions={0}",
     hlo.Collective("all-gather", 1, 2 * 1024 * 1024, 1024 * 1024)),
    ("  %a = bf16[64,1024]{1,0} reduce-scatter(%v), replica_groups=[2,2]<=[4], dimensions={0}, "
     "to_apply=%add",
     hlo.Collective("reduce-scatter", 1, 2 * 256 * 1024, 256 * 1024)),
    ("  %s = (bf16[256,1024]{1,0}, bf16[1024,1024]{1,0}) all-gather-start(%w), dimensions={0}\n"
     "  %d = bf16[1024,1024]{1,0} all-gather-done(%s)",
     hlo.Collective("all-gather", 1, 2 * 1024 * 1024, 2 * 1024 * 1024 * 3 / 4)),
    ("  %s = (bf16[256,1024]{1,0}, bf16[256,1024]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) "
     "collective-permute-start(%w), source_target_pairs={{0,1},{1,0}}\n"
     "  %d = bf16[256,1024]{1,0} collective-permute-done(%s)",
     hlo.Collective("collective-permute", 1, 2 * 256 * 1024, 2 * 256 * 1024)),
    ("  %s = (bf16[256,1024]{1,0}, u32[], token[]) send(%w, %t), channel_id=4\n"
     "  %d = token[] send-done(%s)",
     hlo.Collective("send", 1, 2 * 256 * 1024)),
]  # fmt: skip
ARRAYS = [
    "  %g = f32[30522,768]{1,0:T(8,128)} parameter(1)",
    "  %h = bf16[128]{0} parameter(2)",
    "  %w = bf16[256,1024]{1,0} parameter(3)",
    "  %v = bf16[256,1024]{1,0} parameter(4)",
    "  %t = token[] after-all()",
]


def test_the_payload_of_a_collective_is_the_larger_of_input_and_output():
    for line, expected in COLLECTIVES:
        analysis = hlo.analyze(module(*ARRAYS, line))
        assert analysis.collectives == (expected,)
        assert analysis.uncounted == {expected.kind: 1}
    line = "  %a = bf16[8,128]{1,0} all-reduce(%x), channel_id=1, to_apply=%add"
    computations, run = loop("scan", [line], limit=4)
    analysis = hlo.analyze(module(line, *run, computations=computations))
    assert analysis.collectives == (hlo.Collective("all-reduce", 5, 5 * 2048, 5 * 2048 * 3 / 2),)


def test_a_sum_of_which_a_device_keeps_a_slice_is_sent_once():
    """libtpu writes it as a sum and a slice, several of them with one channel."""
    computations = "".join(
        f"\n%all-reduce-scatter.{number} (w: f32[8,128]) -> f32[2,128] {{\n"
        "  %w = f32[8,128]{1,0} parameter(0)\n"
        f"  %a.{number} = f32[8,128]{{1,0}} all-reduce(%w), channel_id=1, to_apply=%add\n"
        f"  ROOT %r = f32[2,128]{{1,0}} dynamic-slice(%a.{number}, %w)\n}}\n"
        for number in (5, 6)
    )
    lines = [
        f"  %f.{number} = f32[2,128]{{1,0}} fusion(%x), calls=%all-reduce-scatter.{number}"
        for number in (5, 6)
    ]
    analysis = hlo.analyze(module(*lines, computations=computations))
    assert analysis.collectives == (
        hlo.Collective("reduce-scatter", 2, 2 * 4096, 2 * 4096 * 3 / 4),
    )


def test_a_gather_that_runs_beside_fusions_counts_once():
    """libtpu repeats it, under one channel, in what starts it, runs beside it and ends it."""
    parts = {"start": "AsyncCollectiveStart", "beside": "", "finish": "AsyncCollectiveDone"}
    computations = "".join(
        f"\n%{name}_fused (w: bf16[2,128]) -> bf16[8,128] {{\n"
        "  %w = bf16[2,128]{1,0} parameter(0)\n"
        "  %g = bf16[8,128]{1,0} all-gather(%w), channel_id=5, dimensions={0}\n"
        f'  ROOT %r = bf16[8,128]{{1,0}} custom-call(%g), custom_call_target="{target}"\n}}\n'
        for name, target in parts.items()
    )
    silent = "  %{0} = bf16[8,128]{{1,0}} fusion(%x), kind=kCustom, calls=%{0}_fused"
    analysis = hlo.analyze(
        module(
            silent.format("start"),
            fusion("beside", 500, calls="beside_fused"),
            silent.format("finish"),
            computations=computations,
        )
    )
    assert analysis.collectives == (hlo.Collective("all-gather", 1, 2048, 2048 * 3 / 4),)
    assert analysis.uncounted == {"all-gather": 1}
    assert analysis.cycles == 500


def test_a_collective_on_the_sparse_core_counts():
    computations = """
%called (p: bf16[8,128]) -> bf16[8,128] {
  %p = bf16[8,128]{1,0} parameter(0)
  ROOT %r = bf16[8,128]{1,0} all-reduce(%p), channel_id=1, to_apply=%add
}, execution_thread="sparsecore"
"""
    analysis = hlo.analyze(
        module(
            "  %s = ((bf16[8,128]{1,0}), bf16[8,128]{1,0}) call-start(%x), "
            'async_execution_thread="sparsecore", to_apply=%called',
            "  %d = bf16[8,128]{1,0} call-done(%s)",
            computations=computations,
        )
    )
    assert analysis.collectives == (hlo.Collective("all-reduce", 1, 2048, 2048 * 3 / 2),)
    assert analysis.uncounted == {"all-reduce": 1}


def test_bytes_of_shapes():
    for shape, expected in {
        "f32[3,5]{1,0:T(8,128)}": 60,
        "bf16[]{:T(256)}": 2,
        "pred[16]{0}": 16,
        "s4[16]{0}": 8,
        "(f32[4]{0}, (bf16[2,2]{1,0}, u32[]{:S(2)}), token[])": 24,
    }.items():
        assert hlo.num_bytes(shape) == expected


REMAT = "accumulate/transpose(jvp(accumulate))/jvp()/checkpoint/rematted_computation"


def test_operations_are_grouped_by_scopes_and_direction():
    for operation, expected in {
        "jvp(encoder)/layer_3/attention/scores/dot_general": "encoder/attention/scores (forward)",
        "transpose(jvp(encoder))/norm/BL,DE->BE/dot_general": "encoder/norm (backward)",
        f"while/body/closed_call/{REMAT}/encoder/tanh": "accumulate/encoder (recomputed)",
        "jvp(mlm_head)/jit(_where)/select_n": "mlm_head (forward)",
        "transpose(jvp(jit(_take)))/scatter-add": "other (backward)",
        "optimizer/jit(norm)/sqrt": "optimizer",
        "jvp(BMD,VD->BMV)/dot_general": "other (forward)",
        "add": "other",
    }.items():
        assert hlo.by_module({f"jit(train_step)/{operation}": 5.0}) == {expected: 5.0}
    # Names that the compiler gave.
    assert hlo.by_module({"broadcast.391": 1.0, "": 2.0}) == {"other": 3.0}


def test_modules_come_largest_first_and_keep_the_sum():
    operations = {
        "jit(f)/jvp(encoder)/layer_0/attention/dot_general": 1.0,
        "jit(f)/jvp(encoder)/layer_1/attention/dot_general": 2.0,
        "jit(f)/jvp(encoder)/layer_1/feed_forward/dot_general": 4.0,
        "jit(f)/optimizer/add": 0.5,
    }
    parts = {"encoder/feed_forward (forward)": 4.0, "encoder/attention (forward)": 3.0}
    assert list(hlo.by_module(operations).items()) == [*parts.items(), ("optimizer", 0.5)]
    assert hlo.by_module(operations, depth=1) == {"encoder (forward)": 7.0, "optimizer": 0.5}


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo.analyze("module @jit_step {\n}\n")


COMPARE_SCANS = """
import jax, jax.numpy as jnp, numpy as np
from bertjax.plan import hlo, topologies

mesh = jax.sharding.Mesh(np.array(topologies.devices(topologies.parse("v5e-4"))), ("data",))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
x = jax.ShapeDtypeStruct((1024, 512), jnp.float32, sharding=rows)
w = jax.ShapeDtypeStruct(
    (512, 512), jnp.float32, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
)

def cycles(trips):
    def train(x, w):
        def body(w, _):
            return w - jnp.tanh(x @ w).T @ x, None
        return jax.lax.scan(body, w, None, length=trips)[0]
    return hlo.analyze(jax.jit(train).lower(x, w).compile().as_text())

four, eight, twelve = (cycles(trips) for trips in (4, 8, 12))
body = (eight.cycles - four.cycles) / 4
assert body > 1000 and twelve.cycles - eight.cycles == 4 * body
assert abs(four.cycles - 4 * body) < body, (four.cycles, body)
assert [a.collectives[0].count for a in (four, eight, twelve)] == [4, 8, 12]
assert four.collectives[0].bytes == 4 * 512 * 512 * 4
"""


@pytest.mark.slow
def test_a_real_scan_costs_its_trips_times_its_body():
    pytest.importorskip("libtpu")
    # A process of its own: libtpu lets go of its lock only when its process ends.
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", COMPARE_SCANS], check=True, env=environment)


def kernel(name, scores):
    return (
        f'  %{name} = bf16[8,128]{{1,0}} custom-call(%x), custom_call_target="tpu_custom_call", '
        'backend_config={"custom_call_config":{"body":"TU","cost_estimate":{"flops":"9",'
        f'"transcendentals":"{scores}"}}}}}}'
    )


def test_our_kernels_are_counted_by_their_bundles_and_those_of_others_are_not():
    name, bundles = "attention_rows_128_backward_dropout", 15.04
    analysis = hlo.analyze(
        module(kernel(f"{name}.7", 3_000_000), kernel("someones_own.2", 5), fusion("a", 50))
    )
    assert analysis.cycles == 50 + round(3000 * bundles)
    assert analysis.kernel_cycles == round(3000 * bundles)
    assert analysis.uncounted == {"tpu_custom_call": 1}
