#!/usr/bin/env bash
# English to French on aligned verses, with the scores of docs/results.md.
#
#   benchmarks/aligned.sh DATA DIR PEER [SEED ...]
#
# DATA is read by `benchmarks.aligned`, DIR takes everything that is written, PEER is a python with
# torch, transformers and bertjax[generation]. For each seed (0 1 2): an encoder and a decoder begun
# at random, after MASS, and from a BERT; and from the same BERT transformers' EncoderDecoderModel in
# torch. Sizes, batches and updates are the same. The same command goes on where it stopped. EPOCHS
# and STEPS are those of finetuning and of pretraining.
set -euo pipefail

data=$1 dir=$2 peer=$3
shift 3
[ $# -gt 0 ] || set -- 0 1 2
cd "$(dirname "$0")/.."
steps=${STEPS:-1000} epochs=${EPOCHS:-6}
size="--config.model.num_hidden_layers=2 --config.model.hidden_size=128 --config.model.num_attention_heads=2
  --config.model.intermediate_size=512 --config.model.max_position_embeddings=64"
rates="--config.schedule.peak_learning_rate=1e-3 --config.schedule.warmup_steps=200"

[ -e "$dir/test.csv" ] || python -m benchmarks.aligned prepare --data="$data" --output="$dir"
[ -e "$dir/vocabulary" ] ||
  python -m data_pipelines.train_vocabulary --input="$dir/texts.txt" --output="$dir/vocabulary" --size=6000
[ -e "$dir/records" ] ||
  python -m data_pipelines.build --input="$dir/texts.txt" --sentence_splitter=lines --vocabulary="$dir/vocabulary" \
    --output="$dir/records" --split=train --heldout_fraction=0 --max_seq_length=64 --pair_objective=none \
    --mask=none --dupe_factor=1

pretrain() { # NAME STEPS RECIPE OPTION ...
  # shellcheck disable=SC2086
  python -m bertjax.train "${@:3}" --workdir="$dir/$seed/$1" --config.seed="$seed" \
    --config.data.train_dir="$dir/records" --config.phases.phase1.max_seq_length=64 \
    --config.phases.phase1.num_epochs=0 --config.phases.phase1.num_steps="$2" --config.global_batch_size=64 $size
}
finetune() { # NAME RECIPE
  python -m bertjax.train --config="bert2bert:$2" --workdir="$dir/$seed/$1_tuned" --config.seed="$seed" \
    --config.init_from="$dir/$seed/$1" --config.finetuning.train_file="$dir/train.csv" \
    --config.finetuning.eval_files="dev=$dir/dev.csv,unseen=$dir/test.csv" --config.finetuning.text_scores="('chrf','bleu')" \
    --config.finetuning.max_seq_length=64 --config.finetuning.max_target_length=64 --config.finetuning.beams=4 \
    --config.finetuning.num_epochs="$epochs" --config.global_batch_size=32 --config.schedule.peak_learning_rate=1e-3 \
    --config.evaluation.every_steps=100000
}

for seed in "$@"; do
  # shellcheck disable=SC2086
  pretrain mass "$steps" --config=mass:mini $rates
  # A single step at almost no rate: the weights are those of the beginning.
  pretrain none 1 --config=mass:mini --config.schedule.peak_learning_rate=1e-12
  finetune none own
  finetune mass own
  # shellcheck disable=SC2086
  pretrain bert "$steps" --config=bert_mini --config.pretraining.pair_loss=none --config.pretraining.masking=dynamic \
    --config.phases.phase2.num_steps=0 $rates
  finetune bert separate
  [ -e "$dir/$seed/export" ] || python -m bertjax.convert --from="$dir/$seed/bert" --to="$dir/$seed/export"
  "$peer" -m benchmarks.aligned peer --data="$dir" --weights="$dir/$seed/export" --seed="$seed" --epochs="$epochs"
done
