"""The first part of a model card: what a model of a head does, and code that uses it.

The code runs with transformers 5, in which fill-mask and the like are pipelines; a head without a
pipeline is used by its class.
"""

from __future__ import annotations

import dataclasses

from bertjax.convert import pretrained
from bertjax.models import encoder_config
from bertjax.tokenization import letters

_PIPELINE = """from transformers import pipeline

model = pipeline("{pipeline}", model="PATH")
{use}"""
_CLASS = """import torch
from transformers import AutoModel{auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = AutoModel{auto}.from_pretrained("PATH").eval()
{use}"""
_OF_PICTURES = """import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel{auto}

processor = AutoImageProcessor.from_pretrained("PATH")
model = AutoModel{auto}.from_pretrained("PATH").eval()
{use}"""
_OUTPUTS = """inputs = tokenizer({texts}, return_tensors="pt")
with torch.inference_mode():
    outputs = model(**inputs)
"""
_OUTPUTS_OF_PICTURES = """image = Image.open("picture.png").convert("RGB")
with torch.inference_mode():
    outputs = model(**processor(image, return_tensors="pt"))
print(outputs.{field})"""
_PAIR = '"a text", "the text after it"'
_OF_RECORDS = "python -m bertjax.encode --checkpoint=PATH --records=RECORDS > vectors.npz"


@dataclasses.dataclass(frozen=True)
class Use:
    """A head in words, behind "A BERT with N parameters that ...", and code that uses it."""

    does: str
    code: str


_FILLS = _PIPELINE.format(
    pipeline="fill-mask",
    use='text = "a text with a [MASK] in it".replace("[MASK]", model.tokenizer.mask_token)\n'
    "print(model(text))",
)
_CHOICES = """inputs = tokenizer(["a start"] * 2, ["an end", "another end"], \
return_tensors="pt", padding=True)
with torch.inference_mode():
    outputs = model(**{name: values[None] for name, values in inputs.items()})
print(outputs.logits.argmax())"""

# A head of `heads.HEADS` -> its use.
USES = {
    "masked_autoencoder": Use(
        "predicts hidden patches of pictures",
        _OF_PICTURES.format(auto="ForPreTraining", use=_OUTPUTS_OF_PICTURES.format(field="loss")),
    ),
    "sequence_to_sequence": Use(
        "writes a text for a text",
        _CLASS.format(
            auto="ForSeq2SeqLM",
            use='inputs = tokenizer("a text", return_tensors="pt")\n'
            "print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))",
        ),
    ),
    "replaced_tokens": Use(
        "finds replaced tokens",
        _CLASS.format(
            auto="ForPreTraining",
            use=_OUTPUTS.format(texts='"a text"')
            + "print(outputs.logits > 0)  # True: it seems to be replaced",
        ),
    ),
    "pretraining": Use("fills masked tokens and judges pairs of texts", _FILLS),
    "masked_lm": Use("fills masked tokens", _FILLS),
    "causal_lm": Use(
        "continues texts",
        _PIPELINE.format(pipeline="text-generation", use='print(model("a text"))'),
    ),
    "next_sentence": Use(
        "tells whether a text follows another one",
        _CLASS.format(
            auto="ForNextSentencePrediction",
            use=_OUTPUTS.format(texts=_PAIR) + "print(outputs.logits.argmax())  # 0: it follows",
        ),
    ),
    "question_answering": Use(
        "marks the answer to a question in a text",
        _CLASS.format(
            auto="ForQuestionAnswering",
            use=_OUTPUTS.format(texts='"a question", "a text that answers it"')
            + "start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()\n"
            "print(tokenizer.decode(inputs.input_ids[0, start : end + 1]))",
        ),
    ),
    "sequence_classification": Use(
        "classifies texts",
        _PIPELINE.format(pipeline="text-classification", use='print(model("a text"))'),
    ),
    "multiple_choice": Use(
        "chooses the best of several texts",
        _CLASS.format(auto="ForMultipleChoice", use=_CHOICES),
    ),
    "token_classification": Use(
        "labels the words of texts",
        _PIPELINE.format(pipeline="token-classification", use='print(model("a text"))'),
    ),
    "none": Use(
        "makes vectors of texts",
        _CLASS.format(
            auto="", use=_OUTPUTS.format(texts='"a text"') + "print(outputs.last_hidden_state)"
        ),
    ),
}
_VECTORS_OF_PICTURES = Use(
    "makes vectors of pictures",
    _OF_PICTURES.format(auto="", use=_OUTPUTS_OF_PICTURES.format(field="last_hidden_state")),
)
_SENTENCES = Use(
    "makes vectors of sentences",
    """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH")
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text", "another text"])
print(model.similarity(queries, documents))""",
)
_SHIFTED = Use(
    "fills masked tokens, each at the position before it",
    'python -m bertjax.fill_mask --checkpoint=PATH "a text with a [MASK] in it"',
)


def use_of(weights: pretrained.Pretrained, *, is_workdir: bool = False) -> Use:
    """Returns what the model does, and code in which PATH stands for it."""
    use = USES[weights.head]
    if is_workdir:
        return Use("makes vectors of rows of values", _OF_RECORDS)
    if weights.sentence is not None:
        return _SENTENCES
    if weights.is_shifted:
        return _SHIFTED
    if weights.head == "none" and weights.config.embeddings not in encoder_config.OF_TOKENS:
        return _VECTORS_OF_PICTURES
    if weights.vocabulary is not None and weights.vocabulary.describe().get(letters.FIELD):
        code = use.code.replace("a text with a [MASK] in it", "MKTAYIAK[MASK]RQISF")
        return Use(use.does.replace("texts", "sequences"), code.replace('"a text"', '"MKTAYIAK"'))
    return use
