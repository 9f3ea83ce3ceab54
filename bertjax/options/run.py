"""The options of a run, but those of its model, objective and finetuning: a row each."""

from __future__ import annotations

from bertjax.options import encoder
from bertjax.options.option import (
    ABOVE_0,
    ABOVE_0_TO_1,
    AT_LEAST_0,
    AT_LEAST_1,
    BELOW_1,
    SHARE,
    Condition,
    Option,
    between,
)

BATCH = between(1, 1 << 24)
MOST_STEPS = 2**31 - 1  # a step is an int32
STEPS = between(0, MOST_STEPS)
MOST_HOURS = 100_000

_PRETRAINING = Condition(lambda it: it["task"] != "finetuning", "in finetuning")
_FINETUNING = Condition(lambda it: it["task"] == "finetuning", "in pretraining")
_WEIGHTS = Condition(
    lambda it: bool(it["init_from"]), "without weights to start from (--config.init_from=PATH)"
)
_TEACHER = Condition(
    lambda it: bool(it["distillation.teacher"]),
    "without a teacher (--config.distillation.teacher=PATH)",
)
_RECORDS = Condition(
    lambda it: it["data.source"] == "records", "with config.data.source='synthetic'"
)
_DYNAMIC = Condition(
    lambda it: it["pretraining.masking"] == "dynamic",
    "with another config.pretraining.masking than 'dynamic'",
)
_PAIRS = Condition(
    lambda it: bool(it["evaluation.pairs_file"]), "without config.evaluation.pairs_file"
)
_CLIPPED = Condition(lambda it: it["optimizer.clip_norm"] != 0, "with config.optimizer.clip_norm 0")
_MUON = Condition(
    lambda it: it["optimizer.name"] == "muon", "with another config.optimizer.name than 'muon'"
)


def _instead(option: str) -> Condition:
    """Returns the condition of pretraining; finetuning reads an option of config.finetuning."""
    return Condition(_PRETRAINING.holds, f"in finetuning, which has config.finetuning.{option}")


PHASE: dict[str, Option] = {
    "num_steps": Option(
        1_000_000, "optimizer updates in this phase; 0 leaves the phase out", STEPS,
        read=(_instead("num_epochs"),)),
    "num_epochs": Option(
        0.0, "passes over the records; if not 0, it replaces num_steps", STEPS,
        read=(_instead("num_epochs"),)),
    "num_tokens": Option(
        0, "batch x length of its steps; if not 0, it replaces num_steps", between(0, 2**62),
        read=(_instead("num_epochs"),)),
    "max_seq_length": Option(
        128, "tokens per sequence", AT_LEAST_1, read=(_instead("max_seq_length"),)),
    "global_batch_size": Option(0, "sequences per update; 0: config.global_batch_size"),
    "ramp_from": Option(
        0, "first batch in sequences, which grows by as many at a time; 0: it does not grow",
        AT_LEAST_0, read=(_PRETRAINING,)),
    "ramp_tokens": Option(
        0, "batch x length of the steps in which it grows", AT_LEAST_0, read=(_PRETRAINING,)),
    "masked_lm_prob": Option(
        0.0, "of dynamic masks; 0: pretraining.masked_lm_prob", BELOW_1, read=(_DYNAMIC,)),
    "final_masked_lm_prob": Option(
        0.0, "to which it goes linearly by the phase's end; 0: constant", BELOW_1,
        read=(_DYNAMIC,)),
    "language_alpha": Option(
        1.0, "share of a language ~ its tokens ^ this (mBERT 0.7, XLM-R 0.3); 1: all texts "
        "equally often", AT_LEAST_0, read=(_PRETRAINING,)),
    "languages": Option(
        "", 'en=0.3, de, *: shares by hand, and which are read; "": all, by alpha',
        read=(_PRETRAINING,)),
    "rate_share": Option(
        1.0, "of the learning rate that the schedule gives; 0.5: half of it", ABOVE_0),
    "rotary_base": Option(
        0.0, "of layers without a window, while it runs; 0: as in config.model", AT_LEAST_0,
        read=(_PRETRAINING, encoder.ROTARY)),
    "local_rotary_base": Option(
        0.0, "of layers with a window, while it runs; 0: as in config.model", AT_LEAST_0,
        read=(_PRETRAINING, encoder.ROTARY, encoder.WINDOW)),
    "only_embeddings": Option(
        False, "True: the rows of vocabulary entries (embeddings, output bias) learn, all else "
        "stays", read=(_PRETRAINING,)),
}  # fmt: skip

# Options that stand in no group; the defaults of `task` and the like are keys of tables.
RUN: dict[str, Option] = {
    "task": Option("pretraining", "a key of bertjax.jobs.JOBS"),
    "seed": Option(0, "of initialization, data order, masks and dropout"),
    "seeds": Option(
        1, "runs, with seed, seed + 1, ...; results.json has all scores", AT_LEAST_1,
        read=(_FINETUNING,)),
    "search": Option(
        False, "finetuning: the paper's grid of batch sizes, learning rates and epochs",
        read=(_FINETUNING,)),
    "init_from": Option("", 'a workdir, Hugging Face or TF1 checkpoint to start from; "": none'),
    "init_from_smaller": Option(
        False, "True: init_from's layers and widths are repeated to fit",
        read=(_PRETRAINING, _WEIGHTS)),
    "exchange_vocabulary": Option(
        False, "True: the records may have another vocabulary. Pieces of the same string keep "
        "their rows, special tokens the rows of their role, and new pieces start as the mean of "
        "their old pieces", read=(_PRETRAINING, _WEIGHTS)),
    "resize_vocabulary": Option(
        False, "True: entries may be appended to init_from's vocabulary", read=(_WEIGHTS,)),
    "global_batch_size": Option(
        256, "sequences per update, over all devices and micro-batches", BATCH),
    "gradient_accumulation_steps": Option(1, "micro-batches per update", AT_LEAST_1),
    "sharding": Option("data_parallel", "data_parallel | fsdp | tensor | fsdp_tensor"),
    "split_kernels": Option(
        True, "each data device keeps a slice, also of moments (ZeRO stage 1)"),
    "prng_impl": Option("auto", "of dropout; auto: threefry2x32 on CPU, rbg elsewhere"),
    "log_every_steps": Option(
        100, "at most, between two lines of metrics.jsonl: a short run has 20", AT_LEAST_1),
    "writers": Option(("tensorboard",), "besides metrics.jsonl: tensorboard, wandb, mlflow"),
    "profile_steps": Option(
        (), "(10, 15): a profile of these steps and those between; (): none"),
    "max_skipped_steps": Option(
        20, "this many non-finite steps in a row stop the run", AT_LEAST_1),
    "xla_preset": Option("none", "options of the TPU compiler: a key of xla_presets.PRESETS"),
    "compilation_cache_dir": Option("", 'keeps compiled programs; "": as JAX is set'),
}  # fmt: skip

BUDGET: dict[str, Option] = {
    "hours": Option(
        0.0, "the most hours of pretraining, from the end of its first step: its number of steps "
        "is settled by the measured speed, again and again; 0: none",
        between(0, MOST_HOURS), read=(_PRETRAINING,)),
    "decisions": Option(
        (), "written by the run: (step, steps of each phase from then on); the first is the plan",
        read=(_PRETRAINING,)),
    "extend_to": Option(
        0, "the last step, from now on, of a run that has begun; 0: as it began", STEPS,
        read=(_PRETRAINING,)),
}  # fmt: skip

DISTILLATION: dict[str, Option] = {
    "teacher": Option("", 'as init_from: weights with the same vocabulary and head; "": none'),
    "temperature": Option(
        2.0, "logits of both are divided by it in the soft targets", ABOVE_0, read=(_TEACHER,)),
    "soft_weight": Option(
        5.0, "of the divergence from the teacher's distribution", AT_LEAST_0, read=(_TEACHER,)),
    "hard_weight": Option(
        2.0, "of the loss of masked tokens; finetuning: of the labels", AT_LEAST_0,
        read=(_TEACHER,)),
    "cosine_weight": Option(
        1.0, "of the angle between last states; pretraining only", AT_LEAST_0,
        read=(_TEACHER, _PRETRAINING)),
    "only_masked": Option(
        False, "soft targets at masked tokens only; False: at all real ones",
        read=(_TEACHER, _PRETRAINING)),
    "starts_student": Option(
        True, "pretraining without init_from: with the teacher's layers",
        read=(_TEACHER, _PRETRAINING)),
    "layers": Option(
        (), "their numbers, from 0; (): evenly spread, as 0, 2, 4, 7, 9, 11",
        read=(_TEACHER, _PRETRAINING)),
}  # fmt: skip

DATA: dict[str, Option] = {
    "source": Option(
        "records", "records | synthetic (random tokens, to measure speed)",
        choices=("records", "synthetic"), read=(_PRETRAINING,)),
    "train_dir": Option(
        "", "record directory; {max_seq_length} in it becomes the phase's length"),
    "eval_dir": Option("", 'record directory of held-out documents; "": no evaluation'),
    "eval_may_overlap": Option(False, "True: eval_dir may hold training data"),
    "max_streams": Option(32, "streams of records per global batch, at most", AT_LEAST_1),
    "shuffle_buffer_size": Option(
        4096, "records per stream; a shard up to this size shuffles whole", AT_LEAST_1),
    "languages": Option(
        (), "with embeddings of languages: their names in the table's order; (): as the records "
        "have", read=(
            Condition(lambda it: it["model.language_embeddings"] > 0,
                      "with config.model.language_embeddings 0"),
        )),
    "value_meaning": Option(
        "", "of records of values: their columns or channels and a hash of the scaling; as they "
        "say"),
    "length_buckets": Option(
        False, "True: rows of similar lengths share a batch, which is cut to the shortest length "
        "that fits"),
}  # fmt: skip

OPTIMIZER: dict[str, Option] = {
    "name": Option("adamw", "adamw | lamb | stable_adamw | muon (of the layers' kernels)"),
    "beta1": Option(0.9, "decay of the mean of gradients"),
    "beta2": Option(0.999, "decay of the mean of their squares"),
    "eps": Option(1e-6, "added to the root of that mean"),
    "weight_decay": Option(
        0.01, "times learning rate and parameter; not of LayerNorm and biases"),
    "fully_decoupled_decay": Option(
        False, "True: weight_decay is what a step at the peak learning rate takes of a parameter, "
        "whatever that learning rate", read=(
            Condition(lambda it: it["optimizer.name"] != "lamb",
                      "with 'lamb', whose trust ratio takes the decay in"),
        )),
    "decay_biases": Option(False, "True: also of LayerNorm and biases, as fairseq does"),
    "clip_norm": Option(1.0, "global gradient norm; 0: no clipping", AT_LEAST_0),
    "clip_apart": Option(
        "", "part of the model whose norm counts apart, such as generator; '': none",
        read=(_CLIPPED,)),
    "bias_correction": Option(True, "False: as the released BERT optimizer"),
    "moment_dtype": Option(
        "float32", "of Adam's moments of matrices: float32 | bfloat16 (rounded at random, half "
        "the memory)"),
    "ema_decay": Option(
        0.0, "per step, of an average of the parameters, also saved; 0: none", BELOW_1),
    "muon_momentum": Option(
        0.95, "muon: decay of the mean of gradients", BELOW_1, read=(_MUON,)),
    "muon_update_rms": Option(
        0.2, "muon: of its updates, as AdamW's have; 0: as Jordan scales", AT_LEAST_0,
        read=(_MUON,)),
    "head_multiplier": Option(1.0, "factor on the head's learning rate", AT_LEAST_0),
    "layer_decay": Option(
        1.0, "learning rate of layer i: layer_decay ** (num_hidden_layers - i); of a shared "
        "layer the mean of its uses", ABOVE_0_TO_1),
    "frozen": Option((), "not trained: regular expressions of whole parameter paths"),
}  # fmt: skip

# The rows of `schedules.SCHEDULES` say which of these each schedule reads.
SCHEDULE: dict[str, Option] = {
    "name": Option(
        "linear", "linear | cosine | wsd (decay at end) | one_cycle | inverse_sqrt | constant | "
        "bert | electra"),
    "peak_learning_rate": Option(1e-4, "at the end of the warm-up", AT_LEAST_0),
    "warmup_steps": Option(
        10_000, "in which the learning rate rises from 0 to its peak", AT_LEAST_0),
    "warmup_share": Option(
        0.0, "share of all steps; if not 0, it replaces warmup_steps", BELOW_1),
    "warmup_tokens": Option(
        0, "batch x length of its steps; if not 0, it replaces both", AT_LEAST_0),
    "decay_steps": Option(
        0, "wsd: the last steps of the run. linear, cosine, one_cycle: after the warm-up; 0: all "
        "of them", AT_LEAST_0),
    "decay_share": Option(
        0.0, "share of all steps; if not 0, it replaces decay_steps", BELOW_1),
    "decay_tokens": Option(
        0, "batch x length of its steps; if not 0, it replaces both", AT_LEAST_0),
    "decay_shape": Option("linear", "of wsd, one_cycle: linear | one_minus_sqrt | cosine"),
    "start_share": Option(
        0.0, "of the peak, before the warm-up: one_cycle, inverse_sqrt", SHARE),
    "end_share": Option(
        0.0, "of the peak, after the decay: linear, cosine, wsd, one_cycle", SHARE),
}  # fmt: skip

MESH: dict[str, Option] = {
    "data": Option(-1, "devices that split the batch; -1: all devices"),
    "tensor": Option(1, "devices that split heads and intermediate units"),
}

CHECKPOINT: dict[str, Option] = {
    "save_every_steps": Option(
        1_000, "steps between saves; the end of a phase is saved too", AT_LEAST_1),
    "keep_last": Option(3, "newest checkpoints to keep", AT_LEAST_1),
    "keep_every_steps": Option(
        0, "checkpoints at multiples of this are kept too; 0: none", AT_LEAST_0),
    "save_at_words": Option(
        (), "words seen at which a checkpoint is saved and kept: (1e6, 5e6), or a name, "
        '("babylm",)', read=(_PRETRAINING, _RECORDS)),
    "keep_best": Option(1, "best checkpoints to keep, by best_metric; 0: none", AT_LEAST_0),
    "best_metric": Option("mlm_loss", "lower is better; finetuning has its own scores"),
}  # fmt: skip

EVALUATION: dict[str, Option] = {
    "every_steps": Option(
        10_000, "also after the last step; finetuning: 0 is every epoch", AT_LEAST_0),
    "global_batch_size": Option(256, "sequences", BATCH),
    "ema": Option(
        False, "True: the average of the parameters is scored, used and exported", read=(
            Condition(lambda it: it["optimizer.ema_decay"] != 0,
                      "with config.optimizer.ema_decay 0"),
        )),
    "masked_lm_prob": Option(
        0.0, "of dynamic masks; 0: pretraining.masked_lm_prob", BELOW_1, read=(_DYNAMIC,)),
    "max_batches": Option(
        0, "pretraining: batches of an evaluation at most; 0: all", AT_LEAST_0),
    "pairs_file": Option(
        "", "pretraining: minimal pairs such as BLiMP's, a set of their own",
        read=(_PRETRAINING,)),
    "pairs_per_paradigm": Option(0, "the most pairs of each; 0: all", AT_LEAST_0, read=(_PAIRS,)),
    "pairs_language": Option(
        "", "of pairs_file, for a model with embeddings of languages", read=(_PAIRS,)),
}  # fmt: skip

PLATEAU: dict[str, Option] = {
    "check_step": Option(
        20_000, "from here on a loss at the unigram entropy is reported; 0: never"),
    "margin": Option(
        0.3, "nats below the unigram entropy that count as having learnt; less for letters"),
}  # fmt: skip
