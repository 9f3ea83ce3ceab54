"""The first part of a model card: the purpose of a model by its head, and code that uses it.

The code runs with transformers 5, which has a pipeline for some heads, and a class for all.
"""

from __future__ import annotations

from bertjax.convert import heads, pretrained
from bertjax.models import encoder_config
from bertjax.tokenization import letters

_PIPELINES = ("fill-mask", "text-classification", "token-classification", "text-generation")
_PIPELINE = """from transformers import pipeline

model = pipeline("{name}", model="PATH")
{use}"""
_CLASS = """import torch
{imports}from transformers import AutoModel{name}, {reader}

{variable} = {reader}.from_pretrained("PATH")
model = AutoModel{name}.from_pretrained("PATH").eval()
{use}"""
# Classes of `heads.HEADS` that the Auto class calls otherwise.
_AUTO = {"ForConditionalGeneration": "ForSeq2SeqLM", "Model": ""}

_FILLED = """text = "a text with a [MASK] in it".replace("[MASK]", model.tokenizer.mask_token)
print(model(text))"""
_CALLED = 'print(model("a text"))'
_OUTPUTS = """inputs = tokenizer({}, return_tensors="pt")
with torch.inference_mode():
    outputs = model(**inputs)
print({})"""
_OF_PICTURE = """image = Image.open("picture.png").convert("RGB")
with torch.inference_mode():
    outputs = model(**processor(image, return_tensors="pt"))
print(outputs.{})"""
_ANSWER = "tokenizer.decode(inputs.input_ids[0, outputs.start_logits.argmax() : {} + 1])"
_CHOICE = """texts = ["a start", "a start"], ["an end", "another end"]
inputs = tokenizer(*texts, padding=True, return_tensors="pt")
outputs = model(**{name: values[None] for name, values in inputs.items()})
print(outputs.logits.argmax())"""
_GENERATED = """inputs = tokenizer("a text", return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))"""

# A head of `heads.HEADS` -> what the model does, and the last lines of the code.
USES = {
    "masked_autoencoder": ("predicts hidden patches of pictures", _OF_PICTURE.format("loss")),
    "sequence_to_sequence": ("writes a text for a text", _GENERATED),
    "replaced_tokens": ("finds replaced tokens", _OUTPUTS.format('"a text"', "outputs.logits > 0")),
    "pretraining": ("fills masked tokens and judges pairs of texts", _FILLED),
    "masked_lm": ("fills masked tokens", _FILLED),
    "causal_lm": ("continues texts", _CALLED),
    "next_sentence": (
        "tells whether a text follows another one",
        _OUTPUTS.format('"a text", "the text after it"', "outputs.logits.argmax() == 0"),
    ),
    "question_answering": (
        "marks the answer to a question in a text",
        _OUTPUTS.format(
            '"a question", "a text that answers it"', _ANSWER.format("outputs.end_logits.argmax()")
        ),
    ),
    "sequence_classification": ("classifies texts", _CALLED),
    "multiple_choice": ("chooses the best of several texts", _CHOICE),
    "token_classification": ("labels the words of texts", _CALLED),
    "none": ("makes vectors of texts", _OUTPUTS.format('"a text"', "outputs.last_hidden_state")),
}
_OF_SENTENCES = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH")
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text", "another text"])
print(model.similarity(queries, documents))"""


def use_of(weights: pretrained.Pretrained, *, is_workdir: bool = False) -> tuple[str, str]:
    """Returns what the model does, and code in which PATH stands for it."""
    if is_workdir:
        code = "python -m bertjax.encode --checkpoint=PATH --records=RECORDS > vectors.npz"
        return "makes vectors of rows of values", code
    if weights.sentence is not None:
        return "makes vectors of sentences", _OF_SENTENCES
    if weights.is_shifted:
        code = 'python -m bertjax.fill_mask --checkpoint=PATH "a text with a [MASK] in it"'
        return "fills masked tokens, each at the position before it", code
    does, use = USES[weights.head]
    head, values = heads.HEADS[weights.head], {"variable": "tokenizer", "imports": ""}
    name = _AUTO.get(head.class_name, head.class_name)
    if weights.config.embeddings not in encoder_config.OF_TOKENS:
        values = {"variable": "processor", "imports": "from PIL import Image\n"}
        if weights.head == "none":
            does, use = "makes vectors of pictures", _OF_PICTURE.format("last_hidden_state")
    elif weights.vocabulary is not None and weights.vocabulary.describe().get(letters.FIELD):
        does = does.replace("texts", "sequences")
        use = use.replace("a text with a [MASK] in it", "MKTAYIAK[MASK]RQISF")
        use = use.replace('"a text"', '"MKTAYIAK"')
    if head.pipeline in _PIPELINES:
        return does, _PIPELINE.format(name=head.pipeline, use=use)
    reader = "AutoTokenizer" if values["variable"] == "tokenizer" else "AutoImageProcessor"
    return does, _CLASS.format(name=name, reader=reader, use=use, **values)
