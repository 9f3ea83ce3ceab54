"""Claims about options, recipes and what makes a config wrong."""

import importlib
import json
import pathlib
import re
import sys

import ml_collections
import pytest
from absl import flags

from bertjax import config as config_lib
from bertjax import finetuning, jobs, recipes
from bertjax.cli import recipe_flag
from bertjax.data import masking, pair_objectives
from bertjax.devices import sharding
from bertjax.models import activations, encoder_config
from bertjax.options import table as option_table
from bertjax.training import config_faults, optim, schedules
from configs import left_to_right_base

RECIPES = sorted((pathlib.Path(__file__).parents[1] / "configs").glob("[!_]*.py"))


# What the kinds of finetuning cannot do without.
FILES = {
    "glue": {"data_dir": "GLUE", "name": "rte"},
    "squad": {"train_file": "train.json", "name": "v1"},
    **dict.fromkeys(
        ("table", "conll", "swag", "embeddings", "values", "sequences"), {"train_file": "train"}
    ),
}


def usable_config():
    config = config_lib.default_config()
    config.data.train_dir = "records"
    return config


def finetuning_config(dataset):
    config = recipes.finetuning_config(dataset)
    config.init_from = "weights"
    config.finetuning.update(FILES[dataset])
    return config


def fault_lines(config):
    with pytest.raises(ValueError, match="the config cannot be used") as caught:
        config_faults.validate(config)
    return str(caught.value).splitlines()[1:]


def command_line(monkeypatch, recipe, *arguments):
    values = flags.FlagValues()
    recipe_flag.define(flag_values=values)
    arguments = ["program", f"--config={recipe}", *arguments]
    monkeypatch.setattr(sys, "argv", arguments)  # where ml_collections looks too
    values(sys.argv)
    return values.config


FAULTS = {
    "task": "pretrainig",
    "resize_vocabulary": True,  # without init_from
    "init_from_smaller": True,  # the same
    "pretraining.pair_loss": "next",
    "pretraining.mask_strategy": "words",
    "pretraining.masking": "whole_word",
    "pretraining.masked_lm_prob": 0.0,
    "data.source": "record",
    "data.max_streams": 0,
    "data.shuffle_buffer_size": 0,
    "optimizer.name": "adam",
    "optimizer.clip_norm": -1.0,
    "optimizer.head_multiplier": -1.0,
    "optimizer.layer_decay": 0.0,
    "optimizer.ema_decay": 1.0,
    "optimizer.moment_dtype": "float16",
    "schedule.warmup_share": 1.0,
    "finetuning.dataset": "glu",
    "finetuning.pooling": "first",
    "finetuning.max_seq_length": 4,
    "finetuning.lora_rank": -1,
    "finetuning.bilstm_size": -1,
    "finetuning.context": "page",
    "finetuning.doc_stride": 0,
    "finetuning.max_query_length": 0,
    "finetuning.max_answer_length": 0,
    "finetuning.n_best_size": 0,
    "seeds": 0,
    "schedule.name": "cosin",
    "schedule.peak_learning_rate": -1e-4,
    "schedule.warmup_steps": -1,
    "schedule.warmup_tokens": -1,
    "schedule.end_share": 1.5,
    "sharding": "fdsp",
    "prng_impl": "philox",
    "model.dtype": "float16",
    "model.remat": "all",
    "model.hidden_act": "swish",
    "model.hidden_size": 100,  # not a multiple of the 12 heads
    "model.num_hidden_layers": 0,
    "model.hidden_dropout_prob": 1.0,
    "checkpoint.save_every_steps": 0,
    "checkpoint.keep_last": 0,
    "evaluation.every_steps": 0,
    "evaluation.global_batch_size": 0,
    "global_batch_size": 10**12,
    "log_every_steps": 0,
    "max_skipped_steps": 0,
    "phases.phase1.num_steps": -1,
    "phases.phase1.num_epochs": -0.5,
    "phases.phase1.num_tokens": -1,
    "phases.phase1.max_seq_length": 513,  # more than model.max_position_embeddings
}


def test_faults_are_reported_by_the_full_names_of_their_options_alone_and_all_at_once():
    config_faults.validate(usable_config())
    config = usable_config()
    config.update_from_flattened_dict(FAULTS)
    lines = fault_lines(config)
    assert len(lines) == len(FAULTS)
    for name, value in FAULTS.items():
        (line,) = (line for line in lines if line.strip().startswith(f"config.{name} is "))
        assert str(value) in line
        config = usable_config()
        config.update_from_flattened_dict({name: value})
        (line,) = fault_lines(config)
        assert f"config.{name}" in line


# A data set of finetuning, if any; what is wrong, the line that says so, and what mends it.
CONFLICTS = [
    ("", {"checkpoint.save_at_words": ("babylmm",)}, "has 'babylmm'; .* or names: babylm", None),
    ("", {"data.source": "synthetic", "model.vocab_size": 9, "checkpoint.save_at_words": (5,)},
     r"save_at_words is \(5,\), but nothing reads it with config.data.source='synthetic'",
     {"checkpoint.save_at_words": ()}),
    ("", {"sharding": "fdsp"}, "known are data_parallel, fsdp, tensor, fsdp_tensor", None),
    ("", {"pretraining.mask_strategy": "whole_word"},
     "config.pretraining.mask_strategy is 'whole_word'.*'dynamic'",
     {"pretraining.masking": "dynamic"}),
    ("", {"resize_vocabulary": True}, "config.resize_vocabulary is True.*--config.init_from=PATH",
     {"init_from": "weights"}),
    ("", {"exchange_vocabulary": True},
     "config.exchange_vocabulary is True.*--config.init_from=PATH", {"init_from": "weights"}),
    ("", {"exchange_vocabulary": True, "resize_vocabulary": True, "init_from": "weights"},
     "leave config.resize_vocabulary at False", {"resize_vocabulary": False}),
    ("conll", {"exchange_vocabulary": True},
     "exchange_vocabulary is True, but nothing reads it in finetuning", None),
    ("conll", {"phases.phase1.only_embeddings": True},
     "config.phases.phase1.only_embeddings is True, but nothing reads it in finetuning", None),
    ("", {"seeds": 2}, "config.seeds is 2, but nothing reads it in pretraining", None),
    ("", {"search": True}, "config.search is True, but nothing reads it in pretraining", None),
    ("", {"data.train_dir": ""}, "config.data.train_dir", None),
    ("", {"data.source": "synthetic", "data.train_dir": ""}, "vocab_size", {"model.vocab_size": 9}),
    ("", {"phases.phase1.num_epochs": 2.5, "data.source": "synthetic", "model.vocab_size": 100},
     "config.phases.phase1.num_epochs is 2.5.*give num_steps", {"data.source": "records"}),
    ("", {"data.length_buckets": True, "phases.phase1.ramp_from": 128,
          "phases.phase1.ramp_tokens": 10**6},
     "length_buckets is True, and config.phases.phase1.ramp", {"data.length_buckets": False}),
    ("conll", {"finetuning.feature_based": True, "finetuning.lora_rank": 4},
     "config.finetuning.lora_rank is 4.*feature_based", {"finetuning.lora_rank": 0}),
    ("conll", {"finetuning.feature_based": True, "finetuning.bilstm_size": 4},
     "config.finetuning.bilstm_size is 4.*feature_based", {"finetuning.bilstm_size": 0}),
    ("squad", {"finetuning.name": "v2", "finetuning.n_best_size": 1},
     "config.finetuning.n_best_size is 1; it must be at least 2", {"finetuning.name": "v1"}),
    *(("squad", {f"phases.phase1.{option}": value},
       f"config.phases.phase1.{option} is {value}, but nothing reads it in finetuning", None)
      for option, value in {"num_steps": 100, "num_epochs": 2.0, "max_seq_length": 64}.items()),
]  # fmt: skip


def test_options_that_do_not_go_together_are_one_fault():
    for dataset, changes, fault, mended in CONFLICTS:
        config = finetuning_config(dataset) if dataset else usable_config()
        config.update_from_flattened_dict(changes)
        (line,) = fault_lines(config)
        assert re.search(fault, line), changes
        if mended:
            config.update_from_flattened_dict(mended)
            config_faults.validate(config)


def test_finetuning_needs_weights_texts_and_epochs_but_neither_records_nor_phases():
    config = config_lib.default_config()
    config.task = "finetuning"
    config.finetuning.update(FILES["glue"])
    config.seeds, config.search = 5, True
    config.init_from = "weights"
    with config.phases.unlocked():
        del config.phases["phase1"]
    config_faults.validate(config)
    config.update(init_from="")
    config.finetuning.num_epochs = 0.0
    config.data.source = "synthetic"
    named = {line.split()[0] for line in fault_lines(config)}
    assert named == {"config.init_from", "config.finetuning.num_epochs", "config.data.source"}


def test_an_option_that_the_data_set_would_ignore_is_a_fault():
    for dataset, option, value in [
        ("squad", "pooling", "mean"), ("glue", "is_regression", True),
        ("table", "feature_based", True), ("swag", "context", "document"),
    ]:  # fmt: skip
        config = finetuning_config(dataset)
        config.finetuning[option] = value
        (line,) = fault_lines(config)
        assert f"config.finetuning.{option} is {value!r}" in line and repr(dataset) in line
        right = [name for name, kind in finetuning.KINDS.items() if option in kind.options]
        assert all(repr(name) in line for name in right)
        config.finetuning.update(dataset=right[0], **{"name": ""} | FILES[right[0]])
        config_faults.validate(config)


# Options that the defaults do not read, or with None next-token prediction; what reads them.
UNREAD = [
    ("pretraining.discriminator_weight", 10.0, {"pretraining.objective": "replaced_tokens"}),
    ("pretraining.generator.hidden_size", 64, {"pretraining.objective": "replaced_tokens"}),
    ("pretraining.masked_lm_prob", 0.3, None),
    ("evaluation.pairs_per_paradigm", 50, {"evaluation.pairs_file": "pairs.jsonl"}),
    ("data.languages", ("de", "fr"), {"model.language_embeddings": 2}),
    ("evaluation.ema", True, {"optimizer.ema_decay": 0.9}),
    ("optimizer.muon_momentum", 0.9, {"optimizer.name": "muon"}),
    ("phases.phase1.masked_lm_prob", 0.3, {"pretraining.masking": "dynamic"}),
    ("evaluation.masked_lm_prob", 0.15, {"pretraining.masking": "dynamic"}),
    ("schedule.start_share", 0.1, {"schedule.name": "one_cycle"}),
    ("model.rotary_base", 160_000.0, {"model.position_embedding": "rotary"}),
    ("model.global_every", 3, {"model.window": 64}),
    ("phases.phase1.rotary_base", 160_000.0, {"model.position_embedding": "rotary"}),
]


def test_an_option_that_nothing_reads_is_a_fault():
    for name, value, read_with in UNREAD:
        config = left_to_right_base.get_config() if read_with is None else usable_config()
        config.data.train_dir = "train_{max_seq_length}"
        config.update_from_flattened_dict({name: value})
        (line,) = fault_lines(config)
        assert f"config.{name} is {value}, but " in line and "read" in line
        config = usable_config()
        config.pretraining.pair_loss = "none"
        config.update_from_flattened_dict({name: value, **(read_with or {})})
        config_faults.validate(config)


def test_a_config_read_from_a_checkpoint_is_the_same_and_lacks_no_option():
    config = usable_config()
    config.optimizer.frozen = ("encoder",)
    config.seed = 7
    saved = config.to_dict()
    saved["phases"] = {"phase2": saved["phases"]["phase1"] | {"num_steps": 5}}
    read = json.loads(json.dumps(saved))
    assert config_lib.completed(read) == saved
    assert config_lib.differences(read, saved) == ([], [])
    del read["pretraining"]["mask_strategy"], read["phases"]["phase2"]["global_batch_size"]
    assert config_lib.completed(read) == saved


def test_a_batch_that_micro_batches_cannot_divide_is_a_fault_and_so_are_no_phases():
    config = usable_config()
    config.gradient_accumulation_steps = 4
    with config.phases.unlocked():
        config.phases.phase2 = config_lib.phase_config()
    config.phases.phase2.global_batch_size = 30
    (line,) = fault_lines(config)
    assert "config.phases.phase2 is 30" in line and "gradient_accumulation_steps, 4" in line
    with config.unlocked():
        config.phases = ml_collections.ConfigDict()
    assert "config.phases is empty" in fault_lines(config)[0]


@pytest.mark.parametrize("path", ["bert_base", "bert_mini"])
def test_a_recipe_of_two_phases_runs_with_one(path):
    config = importlib.import_module(f"configs.{path}").get_config()
    config.data.train_dir = "records"
    config.phases.phase2.num_steps = 0
    config.phases.phase2.max_seq_length = 100_000  # what does not run is not at fault
    config_faults.validate(config)
    (phase,) = jobs.phases(config)
    assert (phase.name, phase.num_steps) == ("phase1", 900_000)
    config.phases.phase1.num_steps = 0
    (line,) = fault_lines(config)
    assert "config.phases.phase1.num_steps is 0" in line and "no other phase has steps" in line


def test_what_differs_from_the_defaults_is_told_as_one_would_give_it():
    config = recipes.paper_config()
    config.optimizer.frozen = ("encoder",)
    assert config_lib.changes(config.to_dict()) == [
        "--config.model.vocab_size=30522",
        "--config.optimizer.frozen=('encoder',)",
        "--config.phases.phase1.num_steps=900000",
        "--config.phases.phase2.max_seq_length=512",
        "--config.phases.phase2.num_steps=100000",
    ]
    assert config_lib.changes(config_lib.default_config().to_dict()) == []


# ml_collections loads the recipe with what Python 3.15 will drop.
def test_an_unknown_option_on_the_command_line_is_an_error_with_a_suggestion(monkeypatch):
    recipe = next(path for path in RECIPES if path.stem == "smoke")
    config = command_line(monkeypatch, recipe, "--config.model.hidden_size=32", "--config.seed=5")
    assert (config.model.hidden_size, config.seed) == (32, 5)
    with pytest.raises(AttributeError, match=r"model.hiden_size is .* config.model.hidden_size\?"):
        command_line(monkeypatch, recipe, "--config.model.hiden_size=32")


def test_all_that_finetuning_lacks_is_told_at_once():
    config = recipes.finetuning_config("squad")
    lines = "\n".join(fault_lines(config))
    for word in ("config.init_from is empty", "train_file is empty", "name is ''; known are"):
        assert word in lines
    config.finetuning.dataset = "glue"
    lines = "\n".join(fault_lines(config))
    assert "known are cola, sst2" in lines and "data_dir is empty" in lines


def test_two_lengths_are_not_read_from_one_directory():
    config = recipes.paper_config()
    config.data.train_dir = "train_128"
    (line,) = fault_lines(config)
    assert "have 128 and 512 tokens" in line and "--config.phases.phase2.num_steps=0" in line
    config.phases.phase2.num_steps = 0
    config_faults.validate(config)
    config.phases.phase2.num_steps, config.data.train_dir = 5, "train_{max_seq_length}"
    config_faults.validate(config)


def test_a_row_says_what_its_option_means_and_allows_its_default():
    defaults = dict(config_lib.flatten(config_lib.default_config()))
    rows = option_table.rows()
    assert {option_table.row_name(name) for name in defaults} == set(rows)
    for name, default in defaults.items():
        row = rows[option_table.row_name(name)]
        assert row.help.strip(), name
        assert list(row.wrong(name, default, config_faults.CHOICES.get(name))) == []
        assert type(row.default) is type(default)


def test_differences_sorts_what_a_resume_may_change_from_what_it_may_not():
    old, new = config_lib.default_config(), config_lib.default_config()
    new.update_from_flattened_dict(
        {
            **{"mesh.data": 8, "checkpoint.keep_last": 5, "model.remat": "full", "seed": 1},
            **{"model.gradient_reduction_dtype": "compute", "data.eval_dir": "heldout"},
            **{"model.hidden_size": 64, "data.source": "synthetic"},
            "schedule.peak_learning_rate": 1e-3,
        }
    )
    allowed, refused = config_lib.differences(old.to_dict(), new)
    assert allowed == [
        "config.checkpoint.keep_last: was 3, is 5",
        "config.data.eval_dir: was '', is 'heldout'",
        "config.mesh.data: was -1, is 8",
        "config.model.gradient_reduction_dtype: was 'float32', is 'compute'",
        "config.model.remat: was 'none', is 'full'",
    ]
    assert refused == [
        "config.data.source: was 'records', is 'synthetic'",
        "config.model.hidden_size: was 768, is 64",
        "config.schedule.peak_learning_rate: was 0.0001, is 0.001",
        "config.seed: was 0, is 1",
    ]
    new = config_lib.default_config()
    with new.phases.unlocked():
        new.phases.phase2 = config_lib.phase_config()
    allowed, refused = config_lib.differences(old, new)
    assert not allowed
    assert "config.phases.phase2.num_steps: was 'not set', is 1000000" in refused


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid_and_says_command_hardware_time_and_result(path):
    recipe = importlib.import_module(f"configs.{path.stem}")
    config = recipe.get_config()
    assert config.is_locked
    config.data.train_dir = config.data.train_dir or "records_{max_seq_length}"
    if config.task == "finetuning":
        config.init_from = "weights"
        options = FILES[config.finetuning.dataset]
        config.finetuning.update({k: v for k, v in options.items() if not config.finetuning[k]})
    if None not in dict(config_lib.flatten(config)).values():  # which records would say
        config_faults.validate(config)
    for word in ("Command", "Hardware", "Time", "Result"):
        assert re.search(rf"^{word}: +\S", recipe.__doc__, re.MULTILINE), word
    assert f"--config=configs/{path.name}" in recipe.__doc__


@pytest.mark.parametrize("size", ["base", "large"])
def test_base_and_large_carry_the_papers_recipe(size):
    config = importlib.import_module(f"configs.bert_{size}").get_config()
    config.data.train_dir = "records"
    first, second = jobs.phases(config)
    assert (first.num_steps, first.max_seq_length) == (900_000, 128)
    assert (second.num_steps, second.max_seq_length) == (100_000, 512)
    assert first.global_batch_size == second.global_batch_size == 256
    assert second.first_step == 900_000 and second.end_step == 1_000_000
    defaults = config_lib.default_config()  # of what came after the paper
    assert config.optimizer.to_dict() == defaults.optimizer.to_dict() | {
        "name": "adamw", "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01,
        "decay_biases": False, "clip_norm": 1.0, "bias_correction": True,
        "head_multiplier": 1.0, "layer_decay": 1.0, "frozen": (),
    }  # fmt: skip
    assert config.schedule.to_dict() == defaults.schedule.to_dict() | {
        "name": "linear", "peak_learning_rate": 1e-4, "warmup_steps": 10_000,
        "warmup_share": 0.0,
    }  # fmt: skip
    assert config.model.hidden_dropout_prob == config.model.attention_probs_dropout_prob == 0.1
    assert config.mesh.data == {"base": 4, "large": 16}[size]


def test_the_choices_of_an_option_are_the_keys_of_its_table():
    for option, table in {
        "task": jobs.JOBS,
        "finetuning.dataset": finetuning.KINDS,
        "pretraining.pair_loss": pair_objectives.LABELS,
        "pretraining.mask_strategy": masking.MASKERS,
        "optimizer.name": optim.OPTIMIZERS,
        "schedule.name": schedules.SCHEDULES,
        "sharding": sharding.RULES,
        "model.hidden_act": activations.ACTIVATIONS,
        "model.dtype": ("auto", *encoder_config.CHOICES["dtype"]),
        "model.remat": {"none": None} | encoder_config.REMAT_POLICIES,
    }.items():
        assert set(config_faults.CHOICES[option]) == set(table), option
    options = dict(config_lib.flatten(config_lib.default_config()))
    for name, choices in config_faults.CHOICES.items():
        assert options[name] in choices


def test_a_misspelt_option_is_named_with_the_one_that_may_be_meant_and_no_other():
    config = config_lib.default_config()
    expected = "config.schedule.peak_learning_rat is not an option. Did you mean config.schedule."
    for change in (
        lambda: setattr(config.schedule, "peak_learning_rat", 1e-3),
        lambda: config.schedule.peak_learning_rat,
        lambda: config.schedule.update(peak_learning_rat=1e-3),
        lambda: config.update_from_flattened_dict({"schedule.peak_learning_rat": 1e-3}),
    ):
        with pytest.raises((AttributeError, KeyError)) as caught:
            change()
        assert str(caught.value) == f"{expected}peak_learning_rate?"
    with pytest.raises(AttributeError, match=r"config\.phases\.phase1\.num_step is not an option"):
        config.copy_and_resolve_references().phases.phase1.num_step = 3
