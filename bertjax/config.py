"""Every option once, with default, unit and a short comment; and what a resumed run may change.

A recipe in `configs/` starts from `default_config()` and changes what differs. The config is
locked: a misspelt option is an error. `training.config_faults` says what makes a config wrong.
`ConfigDict` stops at the entry points.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections

# Options that a resumed run may change: they decide where and how fast the run goes and what is
# watched, not what is learned (rounding and dropout masks may differ). Any other change is
# refused. A moved train_dir is checked by its manifest, a moved finetuning.data_dir by its rows, a
# moved teacher by its parameters.
CHANGEABLE = (
    r"(mesh|checkpoint|evaluation|plateau)\..*",
    r"sharding|split_kernels|log_every_steps|max_skipped_steps|compilation_cache_dir|xla_preset",
    r"writers|profile_steps|budget\.extend_to",
    r"seeds|search|finetuning\.((data_dir|(train|eval|test)_file)|null_threshold)",
    r"finetuning\.(max_answer_length|n_best_size|tag_scheme)",
    r"phases\.\w+\.num_(epochs|tokens)",  # num_steps has what they came to
    r"gradient_accumulation_steps|model\.((gradient_reduction_)?dtype|remat|attention)",
    r"data\.((train|eval)_dir|eval_may_overlap)|distillation\.teacher",
)


# The functions that hold options, and the prefixes of their names.
_DEFAULTS = {"default_config": "", "phase_config": "phases.*."} | {
    f"_{section}": f"{section}."
    for section in (
        *("model", "pretraining", "finetuning", "distillation", "data", "optimizer", "schedule"),
        *("mesh", "checkpoint", "evaluation", "plateau", "budget"),
    )
}
_DEFAULTS |= {f"_{part}": f"pretraining.{part}." for part in ("generator", "decoder")}


def phase_config() -> ml_collections.ConfigDict:
    """Returns the options of one phase of training."""
    phase = ml_collections.ConfigDict()
    phase.num_steps = 1_000_000  # optimizer updates in this phase; 0 leaves the phase out
    phase.num_epochs = 0.0  # passes over the records; if not 0, it replaces num_steps
    phase.num_tokens = 0  # batch x length of its steps; if not 0, it replaces num_steps
    phase.max_seq_length = 128  # tokens per sequence
    phase.global_batch_size = 0  # sequences per update; 0: config.global_batch_size
    phase.ramp_from = 0  # first batch, in sequences, of one that grows by as many; 0: none grows
    phase.ramp_tokens = 0  # batch x length of the steps in which it grows
    phase.masked_lm_prob = 0.0  # of dynamic masks; 0: pretraining.masked_lm_prob
    phase.final_masked_lm_prob = 0.0  # to which it goes linearly by the phase's end; 0: constant
    # Share of a language ~ its tokens ^ this (mBERT 0.7, XLM-R 0.3); 1: all texts equally often.
    phase.language_alpha = 1.0
    phase.languages = ""  # en=0.3, de, *: shares by hand, and which are read; "": all, by alpha
    phase.rate_share = 1.0  # of the learning rate that the schedule gives; 0.5: half of it
    phase.rotary_base = 0.0  # of layers without a window, while it runs; 0: as in config.model
    phase.local_rotary_base = 0.0  # of layers with a window, while it runs; 0: as in config.model
    # True: the rows of vocabulary entries (embeddings, output bias) learn, all else stays.
    phase.only_embeddings = False
    return phase


def default_config() -> ml_collections.ConfigDict:
    """Returns every option with its default: BERT-base by the paper, one phase."""
    config = ml_collections.ConfigDict()
    config.task = "pretraining"  # a key of bertjax.jobs.JOBS
    config.seed = 0  # of initialization, data order, masks and dropout
    config.seeds = 1  # runs, with seed, seed + 1, ...; results.json has all scores
    config.search = False  # finetuning: the paper's grid of batch sizes, rates and epochs
    config.init_from = ""  # a workdir, Hugging Face or TF1 checkpoint to start from; "": none
    config.init_from_smaller = False  # True: init_from's layers and widths are repeated to fit
    # True: the records may have another vocabulary. Pieces of the same string keep their rows,
    # special tokens those of their role, and new pieces start as the mean of their old pieces.
    config.exchange_vocabulary = False
    config.resize_vocabulary = False  # True: entries may be appended to init_from's vocabulary
    config.global_batch_size = 256  # sequences per update, over all devices and micro-batches
    config.gradient_accumulation_steps = 1  # micro-batches per update
    config.phases = ml_collections.ConfigDict(
        {"phase1": phase_config()}
    )  # run in order: phase1, phase2
    config.budget = _budget()
    config.model = _model()
    config.pretraining = _pretraining()
    config.finetuning = _finetuning()
    config.distillation = _distillation()
    config.data = _data()
    config.optimizer = _optimizer()
    config.schedule = _schedule()
    config.mesh = _mesh()
    config.sharding = "data_parallel"  # data_parallel | fsdp | tensor | fsdp_tensor
    config.split_kernels = True  # each data device keeps a slice, also of moments (ZeRO stage 1)
    config.prng_impl = "auto"  # of dropout; auto: threefry2x32 on CPU, rbg elsewhere
    config.checkpoint = _checkpoint()
    config.evaluation = _evaluation()
    config.log_every_steps = 100  # between two lines of metrics.jsonl
    config.writers = ("tensorboard",)  # besides metrics.jsonl: tensorboard, wandb, mlflow
    config.profile_steps = ()  # (10, 15): a profile of these steps and those between; (): none
    config.max_skipped_steps = 20  # this many non-finite steps in a row stop the run
    config.plateau = _plateau()
    config.xla_preset = "none"  # options of the TPU compiler: a key of xla_presets.PRESETS
    config.compilation_cache_dir = ""  # keeps compiled programs; "": as JAX is set
    return config.lock()


def _budget() -> ml_collections.ConfigDict:
    budget = ml_collections.ConfigDict()
    # The most hours of pretraining: it becomes shorter by a speed measured at the start; 0: none.
    budget.hours = 0.0
    budget.extend_to = 0  # the last step, from now on, of a run that has begun; 0: as it began
    return budget


def _model() -> ml_collections.ConfigDict:
    model = ml_collections.ConfigDict()
    model.vocab_size = 0  # entries; 0: the vocabulary of the records
    model.hidden_size = 768  # width of the layers
    model.num_hidden_layers = 12  # transformer layers
    model.num_attention_heads = 12  # per layer; hidden_size must be a multiple
    model.intermediate_size = 3072  # width of the feed-forward
    model.hidden_act = "gelu"  # gelu (erf) | gelu_tanh | relu | silu
    model.hidden_dropout_prob = 0.1  # of embeddings and of the outputs of sublayers
    model.attention_probs_dropout_prob = 0.1  # of attention weights
    model.max_position_embeddings = 512  # longest sequence the model can read, in tokens
    # Row of the table of the first position; RoBERTa: 2. The row before is that of padding.
    model.position_offset = 0
    model.type_vocab_size = 2  # segments; 0: no embeddings of segments, their ids are not read
    model.language_embeddings = 0  # languages with an embedding each (XLM: 15); 0: none
    model.embedding_size = 0  # of word, position and segment embeddings; 0: hidden_size
    model.embedding_projection = "if_needed"  # if_needed (their width is another) | always
    model.num_hidden_groups = 0  # groups of layers that share parameters (ALBERT: 1); 0: no sharing
    model.inner_group_num = 1  # consecutive layers with parameters of their own in a group
    # Kind of embeddings: learnt (words, positions, segments) | token_dropout (words, ESM-2) |
    # patches (values of series and images) | columns (of tables)
    model.embeddings = "learnt"
    model.value_width = 0  # patches: values of a position; 0: those of the records
    model.columns = ()  # columns: 0 of numbers, else the number of categories; (): of the records
    # patches, for hidden positions: a learnt vector | zeros (PatchTST) | none (they are not read)
    model.hidden_input = "vector"
    model.partial_patches = True  # patches: False: all values of one were observed, or none
    model.normalized_rows = False  # patches: True: each row has the mean 0 and the variance 1
    model.mask_id = -1  # token_dropout: id of the mask, whose vectors are zero; -1: of the records
    # learnt (a table) | rotary (queries and keys turn); of values also sines | sines_of_grid |
    # none
    model.position_embedding = "learnt"
    model.rotary_base = 10_000.0  # rotary: larger for longer texts
    model.local_rotary_base = 0.0  # rotary: that of layers with a window; 0: rotary_base
    model.rotary_angles = "exact"  # rotary: exact | float16 (rounded, as the released ESM-2)
    # Kind of layer: post_norm (BERT) | pre_norm (ModernBERT) | full_pre_norm (ESM-2, ViT: a norm
    # before the first attention, too)
    model.layer = "post_norm"
    model.feed_forward = "plain"  # kind of feed-forward in it: plain | gated (GeGLU, SwiGLU)
    model.norm = "layer_norm"  # layer_norm | scale_only (LayerNorm without bias) | rms_norm
    model.use_bias = True  # False: dense layers of encoder and heads have none, but the last ones
    model.window = 0  # tokens that attention reaches on each side; 0: all; -1: the token alone
    # With a window: every n-th layer, from the first on, has none; 0: all layers have it.
    model.global_every = 1
    # dense (BERT) | normed: ends in a norm and stands before every finetuned head (ModernBERT)
    model.pooler = "dense"
    model.pooler_act = "tanh"  # of the pooler: tanh | gelu (erf) | gelu_tanh | relu | silu
    model.mlm_transform = True  # False: the masked-token head is the words' table and a bias (XLM)
    # Of kernels and embeddings: truncated_normal | normal | xavier_uniform (embeddings normal)
    model.initializer = "truncated_normal"
    model.initializer_range = 0.02  # its sigma; xavier_uniform: of embeddings alone
    model.depth_scaled_init = False  # True: / sqrt(2 x layers) for kernels before a residual
    model.layer_norm_eps = 1e-12  # added to the variance
    model.dtype = "auto"  # of matrix products; auto: float32 on CPU, bfloat16 elsewhere
    # In which the gradients of kernels are summed over devices: float32 | compute (that of dtype).
    model.gradient_reduction_dtype = "float32"
    model.remat = "none"  # recompute activations in the backward pass: none | dots | full
    # xla | pallas (kernels for TPU) | cudnn (those of GPUs, without dropout of the weights, where a
    # trial agrees) | auto: pallas on a TPU newer than v4 where a trial agrees
    model.attention = "auto"
    model.left_to_right = False  # True: a position sees itself and its left alone
    return model


def _pretraining() -> ml_collections.ConfigDict:
    pretraining = ml_collections.ConfigDict()
    pretraining.objective = "masked_tokens"  # a key of tasks.OBJECTIVES
    pretraining.pair_loss = "nsp"  # nsp | sop (sentence order, ALBERT) | none
    # static: from the records | dynamic: drawn at load time | none (next_token)
    pretraining.masking = "static"
    pretraining.mask_strategy = "token"  # dynamic masks: token | whole_word | ngram | span
    pretraining.masked_lm_prob = 0.15  # share of tokens to predict (dynamic masks)
    pretraining.max_predictions_per_seq = 0  # dynamic masks; 0: masked_lm_prob x length, rounded up
    pretraining.mask_share = 0.8  # of the tokens to predict, those that become [MASK] (dynamic)
    pretraining.keep_share = 0.1  # of them, those that stay; the rest becomes random (dynamic)
    pretraining.discriminator_weight = 50.0  # replaced_tokens: of its loss; the generator's has 1
    pretraining.causal_share = 1 / 16  # hybrid: of the rows, those read from left to right
    pretraining.prefix_share = 1 / 4  # prefix_rows: of the rows, those read after a prefix
    pretraining.hybrid_mean = "rows"  # rows: each kind's mean by its share | tokens: of all tokens
    # masked_spans_to_sequence: mass (a fragment of half of the row) | bart (infilled spans,
    # exchanged sentences)
    pretraining.sequence_rows = "mass"
    pretraining.value_error = "squared"  # masked_values: squared | absolute | huber
    pretraining.predicts = "values"  # masked_values: values | replaced (which cells were exchanged)
    pretraining.normalized_patches = False  # masked_values: True: targets of patches, as MAE
    # masked_values: hidden cells of tables get the value of another row of the training data.
    pretraining.exchanged_cells = False
    pretraining.least_crop = 1.0  # of pixels: least share of the area of a random crop; 1: no crop
    pretraining.flips = False  # of pixels: True: half of the pictures are mirrored
    pretraining.generator = _generator()
    pretraining.decoder = _decoder()
    return pretraining


def _decoder() -> ml_collections.ConfigDict:
    # For the objective masked_autoencoder. Other fields come from config.model.
    decoder = ml_collections.ConfigDict()
    decoder.hidden_size = 512  # width of its layers
    decoder.num_hidden_layers = 8  # layers that read the whole row
    decoder.num_attention_heads = 16  # per layer
    decoder.intermediate_size = 2_048  # width of its feed-forward
    return decoder


def _generator() -> ml_collections.ConfigDict:
    # For the objective replaced_tokens. Other fields come from config.model.
    generator = ml_collections.ConfigDict()
    generator.hidden_size = 0  # width of its layers; 0: a quarter of model.hidden_size
    generator.num_hidden_layers = 0  # 0: as many as model.num_hidden_layers
    generator.num_attention_heads = 0  # per layer; 0: one for every 64 of its hidden_size
    generator.intermediate_size = 0  # width of its feed-forward; 0: 4 x its hidden_size
    generator.embeddings = "shared"  # shared | separate | gradient_disentangled (DeBERTaV3)
    generator.temperature = 1.0  # of its samples; lower: likelier tokens
    return generator


def _finetuning() -> ml_collections.ConfigDict:
    finetuning = ml_collections.ConfigDict()
    finetuning.dataset = "glue"  # a key of bertjax.finetuning.KINDS
    finetuning.name = ""  # glue: the task (cola, ..., babylm_wsc); squad: v1 | v2
    finetuning.protocol = ""  # glue: sane | babylm | oracle, settings of others; "": as given
    finetuning.data_dir = ""  # glue: a directory of the official files, or tfds:...
    finetuning.train_file = ""  # all but glue; embeddings: FILE or FILE=WEIGHT, commas between them
    finetuning.eval_file = ""  # "": no evaluation, or eval_files
    finetuning.eval_files = ""  # several: NAME=FILE, commas between them; the first selects
    finetuning.test_file = ""  # "": no predictions
    finetuning.language = ""  # of files but eval_files, with embeddings of languages
    finetuning.text_column = "text"  # table
    finetuning.second_text_column = ""  # table; "": one text a row
    finetuning.label_column = "label"  # table; A,B,C: one of 0 and 1 for each of several labels
    finetuning.is_regression = False  # table: the label is a number
    finetuning.is_multi_label = False  # table: a row has any number of the labels
    finetuning.label_separator = "|"  # table: between several labels of a row
    finetuning.delimiter = "auto"  # table: between columns of CSV and TSV; auto: found
    finetuning.encoding = "utf-8"  # table: of CSV, TSV and JSON lines, as cp1251 or utf-16
    finetuning.labels = ()  # names in order; by default those of the training file
    finetuning.max_seq_length = 128  # tokens of a row; longer ones are truncated or split
    finetuning.num_epochs = 3.0  # passes over the training set
    finetuning.length_buckets = True  # batches of similar length, with less padding
    finetuning.pooling = "cls"  # of a sequence: cls | mean | max | weighted | last
    finetuning.bilstm_size = 0  # each direction's width of a BiLSTM under the head; 0: none
    finetuning.feature_based = False  # conll: train only a BiLSTM on the encoder's last layers
    finetuning.context = "sentence"  # conll: read together: sentence | document
    finetuning.tag_scheme = ""  # conll: of answers: iob1 | iob2 | iobes; "": as in train_file
    finetuning.doc_stride = 128  # squad: tokens from window to window
    finetuning.max_query_length = 64  # squad: tokens of a question
    finetuning.max_answer_length = 30  # squad: tokens of an answer
    finetuning.n_best_size = 20  # squad: best answers per question
    finetuning.null_threshold = 0.0  # squad v2: no answer above it, until a threshold is tuned
    finetuning.repair_answers = False  # squad: move misplaced answers nearby, or leave them out
    finetuning.loss = "ranking"  # embeddings: ranking | simcse | cosine | softmax | distillation
    finetuning.normalize = True  # embeddings: vectors have length 1
    # embeddings: dense layers behind the pooling, ((512, "tanh", True),); (): those of init_from
    finetuning.projections = ()
    finetuning.query_prompt = ""  # embeddings: stands before queries, and texts without a role
    finetuning.document_prompt = ""  # embeddings: before positives, negatives and documents
    finetuning.matryoshka_dims = ()  # embeddings: the loss of each such prefix; (): whole vectors
    finetuning.similarity_scale = 20.0  # embeddings, ranking and simcse: factor on the cosines
    finetuning.score_range = (0.0, 5.0)  # embeddings, cosine: lowest and highest score of files
    finetuning.value_labels = ""  # values: what the labels of the records are; as they say
    finetuning.target_column = "target"  # sequences: of the texts to be generated
    finetuning.max_target_length = 64  # sequences: tokens of a target, its end included
    finetuning.shares = "embeddings"  # sequences: what the decoder has of the encoder: none
    # | words | embeddings | layers (all but cross-attention)
    finetuning.label_smoothing = 0.0  # sequences: the share of the uniform distribution in labels
    finetuning.text_scores = ("exact_match",)  # sequences: also bleu, chrf, rouge1, rouge2, rougeL
    finetuning.beams = 1  # sequences: targets that are searched at a time; 1: the best tokens
    finetuning.length_penalty = 1.0  # sequences, beams: the power of the length in their scores
    finetuning.early_stopping = False  # sequences, beams: end when as many as beams have ended
    finetuning.no_repeat_ngram = 0  # sequences: no such n-gram twice in a target; 0: all may be
    finetuning.decoder_from = ""  # sequences: weights of the decoder; "": those of init_from
    finetuning.target_specials = ()  # sequences: ids of start, end, padding; as the vocabulary has
    finetuning.num_texts = 0  # embeddings: texts of an example; 0: as train_file has
    finetuning.lora_rank = 0  # rank of the LoRA updates; 0: no LoRA
    finetuning.lora_alpha = 16.0  # LoRA updates are scaled by lora_alpha / lora_rank
    # Regular expressions of the kernels with LoRA updates.
    finetuning.lora_targets = (r"encoder\.layers\.\d+\.attention\.(query|value)\.kernel",)
    return finetuning


def _distillation() -> ml_collections.ConfigDict:
    distillation = ml_collections.ConfigDict()
    distillation.teacher = ""  # as init_from: weights with the same vocabulary and head; "": none
    distillation.temperature = 2.0  # logits of both are divided by it in the soft targets
    distillation.soft_weight = 5.0  # of the divergence from the teacher's distribution
    distillation.hard_weight = 2.0  # of the loss of masked tokens; finetuning: of the labels
    distillation.cosine_weight = 1.0  # of the angle between last states; pretraining only
    distillation.only_masked = False  # soft targets at masked tokens only; False: at all real ones
    distillation.starts_student = True  # pretraining without init_from: with the teacher's layers
    distillation.layers = ()  # numbers of those, from 0; (): evenly spread, as 0, 2, 4, 7, 9, 11
    return distillation


def _data() -> ml_collections.ConfigDict:
    data = ml_collections.ConfigDict()
    data.source = "records"  # records | synthetic (random tokens, to measure speed)
    data.train_dir = ""  # record directory; {max_seq_length} in it becomes the phase's length
    data.eval_dir = ""  # record directory of held-out documents; "": no evaluation
    data.eval_may_overlap = False  # True: eval_dir may hold training data
    data.max_streams = 32  # streams of records per global batch, at most
    data.shuffle_buffer_size = 4096  # records per stream; a shard up to this size shuffles whole
    # With embeddings of languages: their names in the table's order; (): those of the records.
    data.languages = ()
    # True: rows of similar lengths share a batch, which is cut to the shortest length that fits.
    data.length_buckets = False
    return data


def _optimizer() -> ml_collections.ConfigDict:
    optimizer = ml_collections.ConfigDict()
    optimizer.name = "adamw"  # adamw | lamb | stable_adamw | muon (of the layers' kernels)
    optimizer.beta1 = 0.9  # decay of the mean of gradients
    optimizer.beta2 = 0.999  # decay of the mean of their squares
    optimizer.eps = 1e-6  # added to the root of that mean
    optimizer.weight_decay = 0.01  # times rate and parameter; not of LayerNorm and biases
    # True: weight_decay is what a step at the peak rate takes of a parameter, whatever that rate.
    optimizer.fully_decoupled_decay = False
    optimizer.decay_biases = False  # True: of those, too, as fairseq does
    optimizer.clip_norm = 1.0  # global gradient norm; 0: no clipping
    optimizer.bias_correction = True  # False: as the released BERT optimizer
    # Of Adam's moments of matrices: float32 | bfloat16 (rounded at random, half the memory).
    optimizer.moment_dtype = "float32"
    optimizer.ema_decay = 0.0  # per step, of an average of the parameters, also saved; 0: none
    optimizer.muon_momentum = 0.95  # muon: decay of the mean of gradients
    optimizer.muon_update_rms = 0.2  # muon: of its updates, as AdamW's have; 0: as Jordan scales
    optimizer.head_multiplier = 1.0  # factor on the head's learning rate
    # Rate of layer i: layer_decay ** (num_hidden_layers - i); of a shared one the mean of its uses.
    optimizer.layer_decay = 1.0
    optimizer.frozen = ()  # not trained: regular expressions of whole parameter paths
    return optimizer


def _schedule() -> ml_collections.ConfigDict:
    schedule = ml_collections.ConfigDict()
    # linear | cosine | wsd (decay at end) | one_cycle | inverse_sqrt | constant | bert | electra
    schedule.name = "linear"
    schedule.peak_learning_rate = 1e-4  # at the end of the warm-up
    schedule.warmup_steps = 10_000  # in which the learning rate rises from 0 to its peak
    schedule.warmup_share = 0.0  # share of all steps; if not 0, it replaces warmup_steps
    schedule.warmup_tokens = 0  # batch x length of its steps; if not 0, it replaces both
    # wsd: the last steps of the run. linear, cosine, one_cycle: after the warm-up; 0: all of them.
    schedule.decay_steps = 0
    schedule.decay_share = 0.0  # share of all steps; if not 0, it replaces decay_steps
    schedule.decay_tokens = 0  # batch x length of its steps; if not 0, it replaces both
    schedule.decay_shape = "linear"  # of wsd, one_cycle: linear | one_minus_sqrt | cosine
    schedule.start_share = 0.0  # of the peak, before the warm-up: one_cycle, inverse_sqrt
    schedule.end_share = 0.0  # of the peak, after the decay: linear, cosine, wsd, one_cycle
    return schedule


def _mesh() -> ml_collections.ConfigDict:
    mesh = ml_collections.ConfigDict()
    mesh.data = -1  # devices that split the batch; -1: all devices
    mesh.tensor = 1  # devices that split heads and intermediate units
    return mesh


def _checkpoint() -> ml_collections.ConfigDict:
    checkpoint = ml_collections.ConfigDict()
    checkpoint.save_every_steps = 1_000  # steps between saves; the end of a phase is saved too
    checkpoint.keep_last = 3  # newest checkpoints to keep
    checkpoint.keep_every_steps = 0  # those at multiples of this are kept too; 0: none
    # Words seen at which a checkpoint is saved and kept: (1e6, 5e6), or a name, ("babylm",).
    checkpoint.save_at_words = ()
    checkpoint.keep_best = 1  # best checkpoints to keep, by best_metric; 0: none
    checkpoint.best_metric = "mlm_loss"  # lower is better; finetuning has its own scores
    return checkpoint


def _evaluation() -> ml_collections.ConfigDict:
    evaluation = ml_collections.ConfigDict()
    evaluation.every_steps = 10_000  # the last step, too; finetuning: 0 is every epoch
    evaluation.global_batch_size = 256  # sequences
    evaluation.ema = False  # True: the average of the parameters is scored, used and exported
    evaluation.masked_lm_prob = 0.0  # of dynamic masks; 0: pretraining.masked_lm_prob
    evaluation.max_batches = 0  # pretraining: batches of an evaluation at most; 0: all
    evaluation.pairs_file = ""  # pretraining: minimal pairs such as BLiMP's, a set of their own
    evaluation.pairs_per_paradigm = 0  # the most pairs of each; 0: all
    evaluation.pairs_language = ""  # of pairs_file, for a model with embeddings of languages
    return evaluation


def _plateau() -> ml_collections.ConfigDict:
    plateau = ml_collections.ConfigDict()
    plateau.check_step = 20_000  # from here on a loss at the unigram entropy is reported; 0: never
    plateau.margin = 0.3  # nats below the unigram entropy that count as having learnt
    return plateau


def phase_names(config: ml_collections.ConfigDict) -> list[str]:
    """Returns the names of the phases that have steps, in their order: phase2 before phase10."""
    names = sorted(config.phases, key=lambda name: (len(name), name))
    return [
        name
        for name in names
        if any(config.phases[name][length] for length in ("num_steps", "num_epochs", "num_tokens"))
    ]


# Options of config.model that a phase may change while it runs.
_OF_MODEL = ("rotary_base", "local_rotary_base")


def in_phase(config: ml_collections.ConfigDict, name: str) -> ml_collections.ConfigDict:
    """Returns a copy with the model of one phase, which no phase changes any more.

    Layers with a window keep their base of config.model (0: its `rotary_base`), unless the phase
    has a `local_rotary_base`.
    """
    options, config = config.phases[name], config.copy_and_resolve_references()
    model = config.model
    if any(options[option] for option in _OF_MODEL):
        local = options.local_rotary_base or model.local_rotary_base or model.rotary_base
        model.rotary_base = options.rotary_base or model.rotary_base
        differs = model.window and local != model.rotary_base
        model.local_rotary_base = local if differs else 0.0
    for phase in config.phases.values():
        phase.update(dict.fromkeys(_OF_MODEL, 0.0))
    return config


def phase_at(config: ml_collections.ConfigDict, step: int) -> str:
    """Returns the phase that trained the model of a step: at a border the one that ends there.

    The phases have their steps. Before the first step, and beyond the last, it is the nearest
    phase.
    """
    end, names = 0, phase_names(config)
    for name in names:
        end += config.phases[name].num_steps
        if step <= end:
            return name
    return names[-1]


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of every option, in order of name; sequences as tuples."""
    for name in sorted(config):
        if isinstance(config[name], Mapping | ml_collections.ConfigDict):
            yield from flatten(config[name], f"{prefix}{name}.")
        else:
            yield prefix + name, _tupled(config[name])


def comments() -> dict[str, str]:
    """Returns the comment of every option in this file, by its dotted name.

    It stands behind the option, or above it where there is no room. Options of a phase have
    "phases.*" before their names.
    """
    source = inspect.getsource(sys.modules[__name__])
    # By the line of the option: the comment's line, or the one below lines of comment alone.
    by_line: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.removeprefix("#").strip()
            if token.line.lstrip().startswith("#"):
                by_line[line + 1] = f"{by_line.pop(line, '')} {text}".strip()
            else:
                by_line[line] = text
    meanings = {}
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef) or function.name not in _DEFAULTS:
            continue
        for line in function.body:
            match line:
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(), attr=name)]):
                    comment = by_line.get(line.end_lineno or 0, "")
                    meanings[_DEFAULTS[function.name] + name] = comment
    return meanings


def completed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a saved config, with the defaults of options that were added since.

    Sequences are tuples again, which JSON has not.
    """

    def over(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        return {**defaults, **{name: _tupled(value) for name, value in values.items()}} | {
            name: over(value, values.get(name, {}))
            for name, value in defaults.items()
            if isinstance(value, Mapping)
        }

    whole = over({**default_config().to_dict(), "phases": {}}, saved)
    phases = {name: over(phase_config().to_dict(), it) for name, it in saved["phases"].items()}
    return whole | {"phases": phases}


def type_faults(saved: Any) -> Iterator[str]:
    """Yields the options of a saved config that are of another type than their defaults."""
    defaults = {**default_config().to_dict(), "phases": {"*": phase_config().to_dict()}}
    return wrong_types(saved, defaults, "config")


# Type of a sample -> the types of values, and what they are called.
_KINDS: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    tuple: ((list, tuple), "a list"),
}


def wrong_types(value: Any, sample: Any, name: str) -> Iterator[str]:
    """Yields what is of another type than in a sample, by dotted names.

    A name that the sample lacks has the type of its "*", or any; a missing group may be None.
    """
    if isinstance(sample, Mapping):
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if (expected := sample.get(key, sample.get("*"))) is not None:
                    yield from wrong_types(inner, expected, f"{name}.{key}")
        elif value is not None:
            yield f"{name} is {value!r:.60}; it must be an object"
        return
    kinds, title = _KINDS[type(sample)]
    if not isinstance(value, kinds) or isinstance(value, bool) != isinstance(sample, bool):
        yield f"{name} is {value!r:.60}; it must be {title}"


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value


def defaults_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults of all options by dotted name, for the phases that the config has."""
    defaults = dict(flatten({**default_config().to_dict(), "phases": {}}))
    for name in config["phases"]:
        defaults |= dict(flatten(phase_config(), f"phases.{name}."))
    return defaults


def changes(config: Mapping[str, Any]) -> list[str]:
    """Returns the options that are not at their defaults, as one would give them: --config.X=Y."""
    defaults = defaults_of(config)
    return [
        f"--config.{name}={value}"
        for name, value in flatten(config)
        if name not in defaults or value != defaults[name]
    ]


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], changeable: Sequence[str] = CHANGEABLE
) -> tuple[list[str], list[str]]:
    """Returns the changes between two configs: those that a resumed run may make, and the others.

    `changeable` are regular expressions of the whole names that it may change.
    """
    before, after = dict(flatten(old)), dict(flatten(new))
    allowed, refused = [], []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, "not set"), after.get(name, "not set")
        if was != now:
            is_in_both = name in before and name in after
            is_allowed = is_in_both and any(re.fullmatch(it, name) for it in changeable)
            (allowed if is_allowed else refused).append(f"config.{name}: was {was!r}, is {now!r}")
    return allowed, refused
