"""What several recipes of `configs/` start from; each is a config whose options are `config`'s."""

from __future__ import annotations

import ml_collections

from bertjax import config as config_lib


def paper_config() -> ml_collections.ConfigDict:
    """Returns the paper's recipe for BERT-base: 128 tokens for 90% of the steps, then 512.

    One run, so that the optimizer's state and the learning-rate schedule go on.
    Source: Devlin et al. 2019, appendix A.2.
    """
    config = config_lib.default_config()
    config.model.vocab_size = 30522  # bert-base-uncased; 0 takes that of the records
    config.phases.phase1.update(num_steps=900_000, max_seq_length=128)
    with config.phases.unlocked():
        config.phases.phase2 = config_lib.phase_config()
    config.phases.phase2.update(num_steps=100_000, max_seq_length=512)
    return config


def albert_config() -> ml_collections.ConfigDict:
    """Returns what the recipes of ALBERT share, those of the released v2; the sizes are of Base.

    One phase of 512 tokens, masks from the records. Source: google-research/albert README (batch
    4096, LAMB, rate .00176, warm-up 3,125 steps) and lamb_optimizer.py, whose moments are not
    corrected; v2: no dropout; the models compute tanh GELU whatever their config says.
    """
    config = config_lib.default_config()
    config.model.update(
        vocab_size=30_000,
        embedding_size=128,
        num_hidden_groups=1,
        hidden_act="gelu_tanh",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.pretraining.pair_loss = "sop"
    config.global_batch_size = 4096
    config.phases.phase1.max_seq_length = 512
    config.optimizer.name = "lamb"
    config.optimizer.bias_correction = False
    config.schedule.peak_learning_rate = 0.00176
    config.schedule.warmup_steps = 3_125
    return config


def spanbert_config() -> ml_collections.ConfigDict:
    """Returns what the recipes of SpanBERT share; the sizes are of Base.

    Source: facebookresearch/SpanBERT, pretraining/README.md: 32 workers of 4096 tokens, Adam with
    eps 1e-8, rate 1e-4 after 10,000 steps. Its vocabulary is bert-base-cased's.
    """
    config = config_lib.default_config()
    config.model.vocab_size = 28_996  # bert-base-cased; 0 takes that of the records
    config.pretraining.update(objective="span_boundary", pair_loss="none")
    config.pretraining.update(masking="dynamic", mask_strategy="span")
    config.phases.phase1.update(num_steps=2_400_000, max_seq_length=512)
    config.optimizer.eps = 1e-8
    return config


def electra_config() -> ml_collections.ConfigDict:
    """Returns what the recipes of ELECTRA share: its objective, masks, optimizer and schedule.

    Source: Clark et al. 2020, appendix A, table 6; google-research/electra,
    configure_pretraining.py and pretrain/pretrain_helpers.py (85% [MASK], 15% kept, no random).
    """
    config = config_lib.default_config()
    config.model.vocab_size = 30522  # bert-base-uncased; 0 takes that of the records
    config.pretraining.objective = "replaced_tokens"
    config.pretraining.pair_loss = "none"
    config.pretraining.masking = "dynamic"
    config.pretraining.mask_share = 0.85
    config.pretraining.keep_share = 0.15
    config.optimizer.bias_correction = False
    config.schedule.name = "electra"
    config.schedule.peak_learning_rate = 2e-4
    config.model.pooler_act = "gelu"  # of the pooler that finetuning puts on it
    config.checkpoint.best_metric = "discriminator_loss"
    return config


def roberta_config() -> ml_collections.ConfigDict:
    """Returns what the recipes of RoBERTa share; the sizes are of Base.

    One phase of 512 tokens, masks drawn anew at each visit, no pairs. Source: Liu et al. 2019,
    section 3.1 and appendix A, table 9. LayerNorm and biases are not decayed, as in BERT; fairseq
    decays them (config.optimizer.decay_biases).
    """
    config = config_lib.default_config()
    config.model.update(
        vocab_size=50_265,
        position_offset=2,
        type_vocab_size=1,
        initializer="normal",
        layer_norm_eps=1e-5,
    )
    config.pretraining.pair_loss = "none"
    config.pretraining.masking = "dynamic"
    config.global_batch_size = 8192
    config.phases.phase1.update(num_steps=500_000, max_seq_length=512)
    config.optimizer.beta2 = 0.98
    config.optimizer.clip_norm = 0.0
    config.schedule.peak_learning_rate = 6e-4
    config.schedule.warmup_steps = 24_000
    return config


def finetuning_config(dataset: str) -> ml_collections.ConfigDict:
    """Returns what the recipes of finetuning share: the paper's three epochs in batches of 32.

    A warm-up over a tenth of the steps, an evaluation every epoch, and the model of the last step.
    Source: Devlin et al. 2019, section 4.1; the warm-up: the released run_classifier.py.
    """
    config = config_lib.default_config()
    config.task = "finetuning"
    config.finetuning.dataset = dataset
    config.global_batch_size = 32
    config.schedule.peak_learning_rate = 2e-5
    config.schedule.warmup_share = 0.1
    config.evaluation.every_steps = 0  # every epoch
    config.evaluation.global_batch_size = 64
    config.checkpoint.keep_last = 1
    config.checkpoint.keep_best = 0
    config.log_every_steps = 20
    return config


def modern_config() -> ml_collections.ConfigDict:
    """Returns what the recipes of ModernBERT and Ettin share; the sizes are of Base.

    Pre-norm layers without biases, gated feed-forwards, rotary positions, windows of 64 tokens to
    each side but in every third layer; masks of 30% drawn as records are read, no pairs;
    StableAdamW without clipping. Three phases: short texts in batches that grow, long ones, and
    long ones while the rate falls. Source: Warner et al. 2024 (ModernBERT), sections 2.1 and 2.2;
    AnswerDotAI/ModernBERT, yamls/modernbert/modernbert-base-pretrain.yaml. Where texts get long,
    the rotary base of layers without a window rises to 160,000 (the released config.json has both
    bases), and the rate is 3e-4 (section 2.2, from memory).
    """
    config = config_lib.default_config()
    config.model.update(
        vocab_size=50_368,  # OLMo's byte-level BPE, rounded up; 0 takes that of the records
        num_hidden_layers=22,
        intermediate_size=1_152,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=8_192,
        type_vocab_size=0,
        layer="pre_norm",
        feed_forward="gated",
        norm="scale_only",
        layer_norm_eps=1e-5,
        use_bias=False,
        position_embedding="rotary",
        rotary_base=10_000.0,
        window=64,
        global_every=3,
        pooler="normed",
        pooler_act="gelu",
        depth_scaled_init=True,
    )
    config.pretraining.update(pair_loss="none", masking="dynamic", masked_lm_prob=0.3)
    config.evaluation.masked_lm_prob = 0.15
    config.global_batch_size = 576  # of 8,192 tokens: as many as 4,608 of 1,024
    with config.phases.unlocked():
        config.phases.phase2 = config_lib.phase_config()
        config.phases.phase3 = config_lib.phase_config()
    config.phases.phase1.update(num_tokens=1_719_000_000_000, max_seq_length=1_024)
    config.phases.phase1.update(global_batch_size=4_608, ramp_from=768, ramp_tokens=50_000_000_000)
    config.phases.phase2.update(num_tokens=250_000_000_000, max_seq_length=8_192)
    config.phases.phase3.update(num_tokens=50_000_000_000, max_seq_length=8_192)
    config.phases.phase2.rate_share = config.phases.phase3.rate_share = 3e-4 / 8e-4
    config.phases.phase2.rotary_base = config.phases.phase3.rotary_base = 160_000.0
    config.optimizer.update(name="stable_adamw", beta2=0.98, weight_decay=1e-5, clip_norm=0.0)
    config.optimizer.fully_decoupled_decay = True
    config.schedule.update(name="wsd", peak_learning_rate=8e-4, decay_shape="one_minus_sqrt")
    config.schedule.update(warmup_tokens=3_000_000_000, decay_tokens=50_000_000_000)
    return config


def ettin_config() -> ml_collections.ConfigDict:
    """Returns what the recipes of Ettin's encoders share, those of ModernBERT; sizes are of Base.

    The last phase masks 15% and begins at half the rate. In their runs the rate falls to that half
    during the second phase; here it stays. Where texts get long, layers with a window have the
    rotary base 160,000, too. Source: Weller et al. 2025; JHU-CLSP/ettin-encoder-vs-decoder,
    pretraining/configs: standard/*/encoder_*.yaml, and those in de_decay and prolong_decay.
    """
    config = modern_config()
    config.phases.phase1.num_tokens = 1_700_000_000_000
    config.phases.phase3.masked_lm_prob = 0.15
    config.phases.phase2.rate_share, config.phases.phase3.rate_share = 1.0, 0.5
    config.phases.phase2.local_rotary_base = config.phases.phase3.local_rotary_base = 160_000.0
    config.schedule.warmup_tokens = 4_000_000_000
    return config
