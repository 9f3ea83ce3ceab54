"""The objectives of the family with transformers' models in torch: a row for each.

`peer_step.py` compares their steps with ours. If transformers has a class with the loss, that class
is used; if not (ELECTRA's two models in one step, SpanBERT's boundaries, distillation), the loss is
that of the released code, on the models of transformers. The module level needs neither torch nor
transformers, so that ours can import the names from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MASK_ID = 103  # [MASK] of the released vocabularies
ALBERT_EMBEDDING_SIZE = 128
# Clark et al. 2020, table 6, and google-research/electra, configure_pretraining.py.
GENERATOR_SHARE, DISCRIMINATOR_WEIGHT, HEAD_SIZE = 4, 50.0, 64
# facebookresearch/SpanBERT, fairseq/modules/span_boundary: embeddings of places in a span.
MAX_SPAN, PLACE_SIZE = 15, 200
# transformers, examples/research_projects/distillation, README.
SOFT_WEIGHT, HARD_WEIGHT, COSINE_WEIGHT, TEMPERATURE = 5.0, 2.0, 1.0, 2.0

Batch = Mapping[str, Any]
Loss = Callable[[Batch], Any]


def sizes_of(job: Any) -> dict[str, Any]:
    """Returns the fields of a transformers configuration that all encoders of BERT's shape have."""
    return {
        "vocab_size": job.vocab_size,
        "hidden_size": job.hidden_size,
        "num_hidden_layers": job.num_layers,
        "num_attention_heads": job.num_heads,
        "intermediate_size": job.intermediate_size,
        "hidden_dropout_prob": job.dropout,
        "attention_probs_dropout_prob": job.dropout,
        "max_position_embeddings": max(512, job.length),
        "attn_implementation": job.attention,
    }


def _inputs(batch: Batch) -> dict[str, Any]:
    return {"input_ids": batch["input_ids"], "attention_mask": batch["input_mask"]}


def _with_pairs(model: Any, pair_labels: str) -> tuple[Any, Loss]:
    """Returns a model that computes the losses of masked tokens and of pairs itself."""

    def loss(batch: Batch) -> Any:
        return model(
            **_inputs(batch),
            token_type_ids=batch["segment_ids"],
            labels=batch["labels"],
            **{pair_labels: batch["next_sentence_labels"]},
        ).loss

    return model, loss


def bert(job: Any) -> tuple[Any, Loss]:
    """BertForPreTraining: masked tokens and the next sentence."""
    import transformers

    config = transformers.BertConfig(**sizes_of(job))
    return _with_pairs(transformers.BertForPreTraining(config), "next_sentence_label")


def roberta(job: Any) -> tuple[Any, Loss]:
    """RobertaForMaskedLM."""
    import transformers

    sizes = sizes_of(job)
    sizes["max_position_embeddings"] += 2
    config = transformers.RobertaConfig(**sizes, type_vocab_size=1, layer_norm_eps=1e-5)
    model = transformers.RobertaForMaskedLM(config)
    return model, lambda batch: model(**_inputs(batch), labels=batch["labels"]).loss


def modernbert(job: Any) -> tuple[Any, Loss]:
    """ModernBertForMaskedLM, without dropout, windows of 64 to each side in two of three layers."""
    import transformers

    sizes = sizes_of(job)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        del sizes[name]
    # Its padding would be an id that a smaller vocabulary lacks.
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    ids |= dict.fromkeys(("cls_token_id", "sep_token_id"))
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes, **ids))
    return model, lambda batch: model(**_inputs(batch), labels=batch["labels"]).loss


def albert(job: Any) -> tuple[Any, Loss]:
    """AlbertForPreTraining: masked tokens and the order of sentences."""
    import transformers

    config = transformers.AlbertConfig(
        **sizes_of(job), embedding_size=ALBERT_EMBEDDING_SIZE, hidden_act="gelu_new"
    )
    return _with_pairs(transformers.AlbertForPreTraining(config), "sentence_order_label")


def electra(job: Any) -> tuple[Any, Loss]:
    """ElectraForMaskedLM fills masks, ElectraForPreTraining judges what it sampled."""
    import torch
    import transformers

    sizes = sizes_of(job)
    generator_size = job.hidden_size // GENERATOR_SHARE
    smaller = sizes | {
        "hidden_size": generator_size,
        "num_attention_heads": max(1, generator_size // HEAD_SIZE),
        "intermediate_size": 4 * generator_size,
    }
    generator, discriminator = (
        model(transformers.ElectraConfig(**fields, embedding_size=job.hidden_size))
        for model, fields in (
            (transformers.ElectraForMaskedLM, smaller),
            (transformers.ElectraForPreTraining, sizes),
        )
    )
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()

    def loss(batch: Batch) -> Any:
        is_masked = batch["labels"] >= 0
        masked = batch["input_ids"].masked_fill(is_masked, MASK_ID)
        mask = batch["input_mask"]
        filled = generator(input_ids=masked, attention_mask=mask, labels=batch["labels"])
        with torch.no_grad():
            noise = torch.rand_like(filled.logits).clamp_(1e-9, 1 - 1e-7)
            sampled = (filled.logits - torch.log(-torch.log(noise))).argmax(-1)
        judged = torch.where(is_masked, sampled, batch["input_ids"])
        original = torch.where(is_masked, batch["labels"], batch["input_ids"])
        told = discriminator(
            input_ids=judged, attention_mask=mask, labels=(judged != original).long()
        )
        return filled.loss + DISCRIMINATOR_WEIGHT * told.loss

    return torch.nn.ModuleList([generator, discriminator]), loss


def spanbert(job: Any) -> tuple[Any, Loss]:
    """BertForMaskedLM, and the head that predicts a token from the two next to its span."""
    import torch
    import transformers

    model = transformers.BertForMaskedLM(
        transformers.BertConfig(**sizes_of(job), type_vocab_size=1)
    )

    def layer(inputs: int) -> list[Any]:
        size = job.hidden_size
        return [torch.nn.Linear(inputs, size), torch.nn.GELU(), torch.nn.LayerNorm(size)]

    head = torch.nn.ModuleDict(
        {
            "place": torch.nn.Embedding(MAX_SPAN, PLACE_SIZE),
            "dense": torch.nn.Sequential(
                *layer(2 * job.hidden_size + PLACE_SIZE), *layer(job.hidden_size)
            ),
        }
    )
    bias = torch.nn.Parameter(torch.zeros(job.vocab_size))
    head.register_parameter("bias", bias)

    def loss(batch: Batch) -> Any:
        made = model(**_inputs(batch), labels=batch["labels"], output_hidden_states=True)
        states, positions = made.hidden_states[-1], batch["masked_lm_positions"]
        sides = [
            states.gather(
                1, places.clamp(0, job.length - 1)[..., None].expand(-1, -1, states.shape[-1])
            )
            for places in (positions - 1, positions + 1)
        ]
        place = head["place"](torch.zeros_like(positions))  # random masks are spans of one token
        told = head["dense"](torch.cat([*sides, place], -1))
        logits = told @ model.get_input_embeddings().weight.T + bias
        boundary = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["masked_lm_ids"].flatten()
        )
        return made.loss + boundary

    return torch.nn.ModuleList([model, head]), loss


def left_to_right(job: Any) -> tuple[Any, Loss]:
    """BertLMHeadModel as a decoder: the next token at every position."""
    import transformers

    config = transformers.BertConfig(**sizes_of(job), is_decoder=True)
    model = transformers.BertLMHeadModel(config)

    def loss(batch: Batch) -> Any:
        return model(**_inputs(batch), labels=batch["input_ids"], use_cache=False).loss

    return model, loss


def distilbert(job: Any) -> tuple[Any, Loss]:
    """DistilBertForMaskedLM of half the layers, taught by BertForMaskedLM."""
    import torch
    import transformers

    functional = torch.nn.functional
    sizes = sizes_of(job)
    teacher = transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).eval()
    teacher.requires_grad_(False)
    student = transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(
            vocab_size=job.vocab_size,
            dim=job.hidden_size,
            n_layers=job.num_layers // 2,
            n_heads=job.num_heads,
            hidden_dim=job.intermediate_size,
            dropout=job.dropout,
            attention_dropout=job.dropout,
            **{name: sizes[name] for name in ("max_position_embeddings", "attn_implementation")},
        )
    )

    def loss(batch: Batch) -> Any:
        made = student(**_inputs(batch), labels=batch["labels"], output_hidden_states=True)
        with torch.no_grad():
            taught = teacher(**_inputs(batch), output_hidden_states=True)
        soft = functional.kl_div(
            functional.log_softmax(made.logits.flatten(0, 1) / TEMPERATURE, -1),
            functional.softmax(taught.logits.flatten(0, 1) / TEMPERATURE, -1),
            reduction="batchmean",
        )
        angle = 1 - functional.cosine_similarity(
            made.hidden_states[-1], taught.hidden_states[-1], dim=-1
        )
        soft = soft * TEMPERATURE**2
        return SOFT_WEIGHT * soft + HARD_WEIGHT * made.loss + COSINE_WEIGHT * angle.mean()

    return torch.nn.ModuleList([student, teacher]), loss


# Name -> what makes its models of a `peer_step.Job`, and the loss of a batch of tensors.
OBJECTIVES: dict[str, Callable[[Any], tuple[Any, Loss]]] = {
    "bert": bert,
    "roberta": roberta,
    "modernbert": modernbert,
    "albert": albert,
    "electra": electra,
    "spanbert": spanbert,
    "left_to_right": left_to_right,
    "distilbert": distilbert,
}
