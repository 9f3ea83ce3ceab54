#!/usr/bin/env bash
# Trains layers and objectives on the same ten million words; each is scored at its end: docs/results.md.
#
#   benchmarks/babylm.sh SOURCES DIR [OBJECTIVE ...]
#
# SOURCES has the texts that babylm.py names, and blimp/pairs.jsonl.xz (BLiMP's pairs in one
# file). Everything goes into DIR. The same command goes on where it stopped: what is there is kept,
# and a training resumes. TRAINING_OPTIONS are further options of each training, such as
# --config.model.dtype=bfloat16 on a CPU that computes in it, or --config.seed=1. With STEPS=14649
# SUFFIX=_60M a run has 60 M tokens and is in DIR/OBJECTIVE_60M; babylm_scores.sh scores it further.
set -euo pipefail

sources=$1 dir=$2
shift 2
cd "$(dirname "$0")/.."
steps=${STEPS:-3662}

# 4 layers of 256 with four heads, without dropout, by AdamW: what layers and objectives learn from
# equal tokens. Gated feed-forwards of 683 have the parameters of others of 1,024.
mini="--config=bert_mini --config.phases.phase2.num_steps=0 --config.pretraining.pair_loss=none
  --config.pretraining.masking=dynamic --config.model.vocab_size=0 --config.model.type_vocab_size=0
  --config.model.hidden_dropout_prob=0 --config.model.attention_probs_dropout_prob=0
  --config.global_batch_size=32 --config.pretraining.max_predictions_per_seq=20
  --config.schedule.warmup_steps=0 --config.schedule.warmup_share=0.1"
modern="$mini --config.model.layer=pre_norm --config.model.norm=scale_only --config.model.use_bias=False
  --config.model.feed_forward=gated --config.model.intermediate_size=683
  --config.model.position_embedding=rotary --config.model.depth_scaled_init=True"
replaced="--config.pretraining.objective=replaced_tokens --config.checkpoint.best_metric=discriminator_loss"
of_electra="--config.pretraining.mask_share=0.85 --config.pretraining.keep_share=0.15"

# Objective -> its options beyond the recipe babylm:mini. All but strict_small train on steps x 32 rows of 128: 15 M tokens.
declare -A objectives=(
  [hybrid]="--config=babylm:mini"
  [masked]="--config=babylm:mini --config.pretraining.objective=masked_tokens"
  [next_token]="--config=babylm:mini --config.pretraining.objective=next_token
    --config.pretraining.masking=none --config.model.left_to_right=True
    --config.phases.phase1.masked_lm_prob=0 --config.phases.phase1.final_masked_lm_prob=0
    --config.pretraining.masked_lm_prob=0.15 --config.evaluation.masked_lm_prob=0
    --config.checkpoint.best_metric=lm_loss"
  [electra]="--config=babylm:mini --config.pretraining.objective=replaced_tokens
    --config.pretraining.mask_share=0.85 --config.pretraining.keep_share=0.15
    --config.phases.phase1.masked_lm_prob=0.15 --config.phases.phase1.final_masked_lm_prob=0
    --config.checkpoint.best_metric=discriminator_loss"
  # Of 2018: post-norm layers with learnt positions and dropout, sentence pairs, stored masks, AdamW.
  [bert]="--config=bert_mini --config.model.num_hidden_layers=6 --config.model.intermediate_size=576
    --config.global_batch_size=32 --config.schedule.peak_learning_rate=1e-3
    --config.schedule.warmup_steps=366 --config.phases.phase2.num_steps=0"
  [mini_masked]="$mini"
  [mini_electra]="$mini $replaced $of_electra"
  [modern_masked]="$modern"
  [modern_electra]="$modern $replaced $of_electra"
  [deberta]="$mini $replaced --config.pretraining.mask_share=1.0 --config.pretraining.keep_share=0.0
    --config.model.position_embedding=none --config.model.relative=disentangled
    --config.model.mask_decoder=True --config.model.replaced_head=with_first
    --config.model.pooler_act=gelu --config.model.initializer=normal --config.model.layer_norm_eps=1e-7
    --config.optimizer.clip_apart=generator --config.pretraining.generator.embeddings=gradient_disentangled
    --config.pretraining.generator.num_hidden_layers=2 --config.pretraining.generator.hidden_size=256
    --config.pretraining.generator.num_attention_heads=4 --config.pretraining.generator.intermediate_size=1024"
  # The recipe at its own size, on 128 rows a step: STEPS=8684 are its ten passes.
  [strict_small]="--config=babylm:strict_small"
)
# Records of all but BERT are rows without pairs, packed with several texts.
packed="--packing=best_fit --pair_objective=none --mask=none --short_seq_prob=0 --dupe_factor=1 --count_words"

[ -e "$dir/text/heldout.txt" ] ||
  python -m benchmarks.babylm corpus --sources="$sources" --output="$dir/text"
[ -e "$dir/vocabulary" ] ||
  python -m data_pipelines.train_vocabulary --input="$dir/text/train.txt" \
    --output="$dir/vocabulary" --kind=byte_bpe --size=8192

# records NAME TEXT OPTIONS
records() {
  [ -e "$dir/$1" ] || python -m data_pipelines.build --input="$dir/text/$2.txt" \
    --vocabulary="$dir/vocabulary" --output="$dir/$1" --max_seq_length=128 "${@:3}"
}

for name in "${@:-hybrid}"; do
  if [ "$name" = bert ]; then
    records pairs_train train --dupe_factor=2
    records pairs_heldout heldout --dupe_factor=1
    data="--config.data.train_dir=$dir/pairs_train --config.data.eval_dir=$dir/pairs_heldout"
  else
    # shellcheck disable=SC2086
    records train train $packed
    # shellcheck disable=SC2086
    records heldout heldout $packed
    data="--config.data.train_dir=$dir/train --config.data.eval_dir=$dir/heldout"
  fi
  # shellcheck disable=SC2086
  python -m bertjax.train --workdir="$dir/$name${SUFFIX:-}" ${objectives[$name]} $data \
    --config.phases.phase1.num_epochs=0 --config.phases.phase1.num_steps="$steps" \
    --config.evaluation.every_steps="$steps" --config.evaluation.pairs_per_paradigm=100 \
    --config.evaluation.pairs_file="$sources/blimp/pairs.jsonl.xz" ${TRAINING_OPTIONS:-}
done
