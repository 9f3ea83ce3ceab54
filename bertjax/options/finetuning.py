"""The options of finetuning: a row each, and the rows that single kinds own.

The rows of `finetuning.KINDS` name those of OWNED that they read, or declare rows of their own.
"""

from __future__ import annotations

from bertjax.options.option import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    BELOW_1,
    Condition,
    Option,
    at_least,
)

ROWS: dict[str, Option] = {
    "dataset": Option("glue", "a key of bertjax.finetuning.KINDS"),
    "name": Option("", "glue: the task (cola, ..., babylm_wsc); squad: v1 | v2"),
    "protocol": Option(
        "", 'glue: tuned: by the width; sane | babylm | oracle: of others; "": as given'),
    "data_dir": Option("", "glue: a directory of the official files, or tfds:..."),
    "train_file": Option(
        "", "all but glue; embeddings: FILE or FILE=WEIGHT, commas between them"),
    "eval_file": Option("", '"": no evaluation, or eval_files'),
    "eval_files": Option("", "several: NAME=FILE, commas between them; the first selects"),
    "test_file": Option("", '"": no predictions'),
    "language": Option("", "of files but eval_files, with embeddings of languages"),
    "text_column": Option("text", "table"),
    "second_text_column": Option("", 'table; "": one text a row'),
    "label_column": Option("label", "table; A,B,C: one of 0 and 1 for each of several labels"),
    "labels": Option((), "names in order; by default those of the training file"),
    "max_seq_length": Option(
        128, "tokens of a row; longer ones are truncated or split", at_least(5)),
    "num_epochs": Option(3.0, "passes over the training set", ABOVE_0),
    "length_buckets": Option(True, "batches of similar length, with less padding"),
    "doc_stride": Option(128, "squad: tokens from window to window", AT_LEAST_1),
    "max_query_length": Option(64, "squad: tokens of a question", AT_LEAST_1),
    "max_answer_length": Option(30, "squad: tokens of an answer", AT_LEAST_1),
    "n_best_size": Option(20, "squad: best answers per question", AT_LEAST_1),
    "null_threshold": Option(
        0.0, "squad v2: no answer above it, until a threshold is tuned"),
    "repair_answers": Option(False, "squad: move misplaced answers nearby, or leave them out"),
    "lora_rank": Option(0, "rank of the LoRA updates; 0: no LoRA", AT_LEAST_0),
    "lora_alpha": Option(16.0, "LoRA updates are scaled by lora_alpha / lora_rank"),
    "lora_targets": Option(
        (r"encoder\.layers\.\d+\.attention\.(query|value)\.kernel",),
        "regular expressions of the kernels with LoRA updates"),
}  # fmt: skip

OWNED: dict[str, Option] = {
    "pooling": Option("cls", "of a sequence: cls | mean | max | weighted | last | late"),
    "bilstm_size": Option(
        0, "each direction's width of a BiLSTM under the head; 0: none", AT_LEAST_0),
    "is_regression": Option(False, "table: the label is a number"),
    "is_multi_label": Option(False, "table: a row has any number of the labels"),
    "label_separator": Option("|", "table: between several labels of a row"),
    "delimiter": Option("auto", "table: between columns of CSV and TSV; auto: detected"),
    "encoding": Option("utf-8", "table: of CSV, TSV and JSON lines, as cp1251 or utf-16"),
    "feature_based": Option(False, "conll: train only a BiLSTM on the encoder's last layers"),
    "context": Option(
        "sentence", "conll: read together: sentence | document",
        choices=("sentence", "document")),
    "tag_scheme": Option(
        "", 'conll: of predictions: iob1 | iob2 | iobes; "": as in train_file'),
    "loss": Option("ranking", "embeddings: ranking | simcse | cosine | softmax | distillation"),
    "normalize": Option(True, "embeddings: vectors have length 1"),
    "projections": Option(
        (), 'embeddings: dense layers behind the pooling, ((512, "tanh", True),); (): those of '
        "init_from"),
    "query_prompt": Option(
        "", "embeddings: stands before queries, and texts without a role"),
    "document_prompt": Option("", "embeddings: before positives, negatives and documents"),
    "matryoshka_dims": Option(
        (), "embeddings: the loss of each such prefix; (): whole vectors"),
    "similarity_scale": Option(
        20.0, "embeddings, ranking and simcse: factor on the cosines", ABOVE_0),
    "score_range": Option(
        (0.0, 5.0), "embeddings, cosine: lowest and highest score of files"),
    "num_texts": Option(0, "embeddings: texts of an example; 0: as train_file has", AT_LEAST_0),
    "value_labels": Option("", "values: what the labels of the records are; as they say"),
    "target_column": Option("target", "sequences: of the texts to be generated"),
    "max_target_length": Option(
        64, "sequences: tokens of a target, its end included", at_least(2)),
    "shares": Option(
        "embeddings", "sequences: what the decoder has of the encoder: none | words | embeddings "
        "| layers (all but cross-attention)"),
    "label_smoothing": Option(
        0.0, "sequences: the share of the uniform distribution in labels", BELOW_1),
    "text_scores": Option(
        ("exact_match",), "sequences: also bleu, chrf, rouge1, rouge2, rougeL"),
    "bleu_tokenizer": Option(
        "13a", "sequences: of BLEU, as sacrebleu names it: intl, zh, char, ja-mecab, flores200 ...",
        read=(Condition(
            lambda it: "bleu" in it["finetuning.text_scores"],
            "without bleu in config.finetuning.text_scores"),)),
    "beams": Option(1, "sequences: targets that are searched at a time; 1: the best tokens"),
    "length_penalty": Option(
        1.0, "sequences, beams: the power of the length in their scores"),
    "early_stopping": Option(
        "false", "sequences, beams: the search ends when this many targets have ended: true; when "
        "no other can become better at its length: false; or at any length: never",
        choices=("false", "true", "never")),
    "no_repeat_ngram": Option(
        0, "sequences: no such n-gram twice in a target; 0: all may be"),
    "min_new_tokens": Option(
        0, "sequences: least tokens of a target before its end", AT_LEAST_0),
    "decoder_from": Option("", 'sequences: weights of the decoder; "": those of init_from'),
    "target_specials": Option(
        (), "sequences: ids of start, end, padding; (): as the vocabulary has"),
}  # fmt: skip


def owned(*names: str) -> dict[str, Option]:
    """Returns rows of OWNED by name."""
    return {name: OWNED[name] for name in names}
