"""Opens exports with the libraries of the environment that it runs in, and compares the outputs.

    OTHER/bin/python tests/readers/reader.py READER DIRECTORY PATTERN

It needs neither bertjax nor JAX. For each export it prints a line of JSON with the
complaints, of which there are none if the outputs are ours and nothing was logged or warned of.
"""

import contextlib
import json
import logging
import pathlib
import sys
import tempfile
import types
import warnings
from importlib import metadata

import numpy as np
import torch
import transformers

# Head -> how transformers finds its class; BERT and ALBERT pretrain two heads, ELECTRA its own.
AUTO = {
    "pretraining": "AutoModelForPreTraining",
    "replaced_tokens": "AutoModelForPreTraining",
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "none": "AutoModel",
    "next_sentence": "AutoModelForNextSentencePrediction",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
    "sequence_to_sequence": "AutoModelForSeq2SeqLM",
}
# Messages that a reader has for every model of its kind.
OF_EVERY_MODEL = (
    "BertForMaskedLM has generative capabilities",  # transformers 4.48, of its own class
    "No sentence-transformers model found with name",  # PyLate, of every plain encoder
    "The new embeddings will be initialized from",  # of tokens that PyLate and GLiNER add
    "End-of-sequence token was not set, but detected",  # EuroEval, of every BERT
)
# Head -> optimum's task; EuroEval's group of tasks, which makes its own head for an encoder.
TASKS = {
    "none": "feature-extraction",
    "masked_lm": "fill-mask",
    "sequence_classification": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    "multiple_choice": "multiple-choice",
}
GROUPS = {
    "none": "SEQUENCE_CLASSIFICATION",
    "sequence_classification": "SEQUENCE_CLASSIFICATION",
    "token_classification": "TOKEN_CLASSIFICATION",
    "question_answering": "QUESTION_ANSWERING",
}


@contextlib.contextmanager
def listening():
    """Yields a list of whatever is logged or warned of meanwhile."""
    complaints: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: complaints.append(f"logged: {record.getMessage()}")
    listener.addFilter(lambda record: not record.getMessage().startswith(OF_EVERY_MODEL))
    loggers = [logging.getLogger(), logging.getLogger("transformers")]  # it hands nothing on
    for logger in loggers:
        logger.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield complaints
            complaints += [f"warned: {each.message}" for each in warned]
    finally:
        for logger in loggers:
            logger.removeHandler(listener)


def facts_of(directory):
    """Returns what is expected of an export: head, text, ids and outputs, or texts and vectors."""
    return json.loads((pathlib.Path(directory) / "expected.json").read_text())


def differences(theirs, ours) -> list[str]:
    """Returns a complaint for each of our outputs that theirs is not."""
    complaints = []
    for number, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        mine, their = np.asarray(mine), torch.as_tensor(their).detach().cpu().numpy()
        if mine.shape != their.shape:
            complaints.append(f"output {number} has the shape {their.shape}, ours {mine.shape}")
        elif not (difference := np.abs(mine - their).max()) <= 1e-4:
            complaints.append(f"output {number} is off by {difference:.2g}")
    if len(theirs) < len(ours):
        complaints.append(f"{len(theirs)} outputs, ours {len(ours)}")
    return complaints


def inputs_of(tokenizer, facts, model) -> dict:
    """Returns the tensors of a text for a class of transformers."""
    inputs = dict(tokenizer(facts["text"], return_tensors="pt"))
    if "lang_id" in vars(model.config):
        inputs["langs"] = torch.zeros_like(inputs["input_ids"])
    if facts["head"] == "sequence_to_sequence":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    if facts["head"] == "multiple_choice":
        inputs = {name: rows[:, None] for name, rows in inputs.items()}
    return inputs


def load(directory):
    """Returns the model and tokenizer of an export, and this process's complaints about them."""
    facts = facts_of(directory)
    auto = getattr(transformers, AUTO[facts["head"]])
    with listening() as complaints:
        model, report = auto.from_pretrained(directory, output_loading_info=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        inputs = inputs_of(tokenizer, facts, model)
        with torch.no_grad():
            outputs = model.eval()(**inputs, return_dict=False)
    if facts["head"] == "causal_lm":  # ours has none where nothing follows
        outputs = (outputs[0][:, :-1],)
    complaints += differences(outputs, facts["outputs"])
    complaints += [f"{kind}: {sorted(keys)}" for kind, keys in report.items() if keys]
    if type(model).__name__ != model.config.architectures[0]:
        name = type(model).__name__
        complaints.append(f"class {name}, config.json has {model.config.architectures}")
    if (ids := inputs["input_ids"].ravel().tolist()) != facts["ids"]:
        complaints.append(f"ids of {facts['text']!r}: {ids}, ours {facts['ids']}")
    return model, tokenizer, complaints


def by_transformers(directory, facts) -> list[str]:
    """A class of transformers, its tokenizer, and all outputs."""
    return load(directory)[2]


def by_sentence_transformers(directory, facts) -> list[str]:
    """A dense model of sentence-transformers: vectors."""
    import sentence_transformers

    with listening() as complaints:
        model = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
        vectors = model.encode(facts["texts"])
    return complaints + differences([vectors], [facts["vectors"]])


def by_cross_encoder(directory, facts) -> list[str]:
    """A reranker of sentence-transformers: its numbers, before a sigmoid."""
    import sentence_transformers

    with listening() as complaints:
        model = sentence_transformers.CrossEncoder(str(directory), device="cpu")
        numbers = model.predict(facts["texts"], activation_fn=torch.nn.Identity())
    return complaints + differences([numbers], [facts["vectors"]])


def by_sparse_encoder(directory, facts) -> list[str]:
    """The backbone of SPLADE: the greatest log(1 + logit) of each token over the positions."""
    import sentence_transformers

    with listening() as complaints:
        model = sentence_transformers.SparseEncoder(str(directory), device="cpu")
        vector = model.encode(facts["text"], convert_to_sparse_tensor=False)
    expected = np.log1p(np.maximum(facts["outputs"][0], 0)).max(axis=(0, 1))
    return complaints + differences([vector.cpu()], [expected])


def by_multi_vector_encoder(directory, facts) -> list[str]:
    """The backbone of a late-interaction model: the vectors of tokens before the new Dense."""
    import sentence_transformers

    with listening() as complaints:
        model = sentence_transformers.MultiVectorEncoder(str(directory), device="cpu")
        with torch.no_grad():
            states = model[0](model[0].preprocess([facts["text"]]))["token_embeddings"]
        model.encode_document([facts["text"]])
    return complaints + differences([states], facts["outputs"][:1])


def by_pylate(directory, facts) -> list[str]:
    """The backbone of a ColBERT: the vectors of tokens before the new Dense."""
    from pylate import models

    with listening() as complaints:
        model = models.ColBERT(str(directory), device="cpu")
        inputs = model[0].tokenizer(facts["text"], return_tensors="pt")
        states = model[0](dict(inputs))["token_embeddings"]
        model.encode([facts["text"]], is_query=False)
    return complaints + differences([states], facts["outputs"][:1])


def by_gliner(directory, facts) -> list[str]:
    """The backbone of a GLiNER: its states, and twenty steps of training that change it."""
    import gliner

    size = np.shape(facts["outputs"][0])[-1]
    config = gliner.GLiNERConfig(
        model_name=str(directory), max_len=14, max_types=2, max_width=4, hidden_size=size
    )
    rows = [{"tokenized_text": facts["text"].split(), "ner": [[0, 1, "w4"]]}] * 8
    with listening() as complaints:
        model = gliner.GLiNER.from_config(config)
        backbone = model.model.token_rep_layer.bert_layer.model.eval()
        before = backbone(torch.tensor([facts["ids"]]))[0].detach()
    complaints += differences([before], facts["outputs"][:1])
    with tempfile.TemporaryDirectory() as folder:
        options = {"max_steps": 20, "use_cpu": True, "report_to": "none", "save_strategy": "no"}
        options |= {"logging_steps": 1, "dataloader_num_workers": 0, "learning_rate": 1e-3}
        history = model.train_model(rows, rows, output_dir=folder, **options).state.log_history
    losses = [row["loss"] for row in history if "loss" in row]
    if len(losses) != 20 or not np.isfinite(losses).all():
        complaints.append(f"the losses of twenty steps: {losses}")
    if torch.equal(before, backbone.eval()(torch.tensor([facts["ids"]]))[0]):
        complaints.append("twenty steps changed nothing")
    return complaints


def by_optimum(directory, facts) -> list[str]:
    """The ONNX of an export, computed by onnxruntime; torch's tracer warns, which is not heard."""
    import onnxruntime
    from optimum.exporters.onnx import main_export

    with tempfile.TemporaryDirectory() as folder:
        main_export(str(directory), folder, task=TASKS[facts["head"]], do_validation=False)
        session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
        ids = np.array([facts["ids"]])
        ids = ids[None] if facts["head"] == "multiple_choice" else ids
        given = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
        outputs = session.run(None, {it.name: given[it.name] for it in session.get_inputs()})
    return differences(outputs, facts["outputs"][: len(outputs)])


def by_euroeval(directory, facts) -> list[str]:
    """A model as EuroEval loads and aligns it: the encoder's states, or the logits of a head."""
    from euroeval import enums
    from euroeval.benchmark_modules import hf

    labels = dict(enumerate(["no", "yes", "perhaps"]))
    labels = {0: "start", 1: "end"} if facts["head"] == "question_answering" else labels
    group = types.SimpleNamespace(task_group=enums.TaskGroup[GROUPS[facts["head"]]])
    options = {"api_key": None, "trust_remote_code": False, "run_with_cli": False}
    where = {"model_id": str(directory), "revision": "main", "model_cache_dir": None, "param": None}
    with listening() as complaints:
        model, tokenizer = hf.load_model_and_tokeniser(
            types.SimpleNamespace(**where),
            types.SimpleNamespace(task=group, id2label=labels),
            types.SimpleNamespace(**options, device=torch.device("cpu")),
        )
        model, tokenizer = hf.align_model_and_tokeniser(model, tokenizer, model_max_length=16)
        model = model.base_model if facts["head"] == "none" else model
        outputs = model(**tokenizer(facts["text"], return_tensors="pt"), return_dict=False)
    return complaints + differences(outputs, facts["outputs"][: len(outputs)])


PACKAGES = (
    *("vllm", "euroeval", "gliner", "pylate", "optimum-onnx", "onnxruntime"),
    *("sentence-transformers", "transformers", "torch"),
)
READERS = {
    "transformers": by_transformers,
    "SentenceTransformer": by_sentence_transformers,
    "CrossEncoder": by_cross_encoder,
    "SparseEncoder": by_sparse_encoder,
    "MultiVectorEncoder": by_multi_vector_encoder,
    "PyLate": by_pylate,
    "GLiNER": by_gliner,
    "optimum": by_optimum,
    "EuroEval": by_euroeval,
}
HEADS = {"optimum": TASKS, "EuroEval": GROUPS}  # of the readers that do not have all


def versions() -> str:
    """Returns the packages of this environment that matter, with their versions."""
    installed = {it.metadata["Name"].lower(): it.version for it in metadata.distributions()}
    return ", ".join(f"{name} {installed[name]}" for name in PACKAGES if name in installed)


def has_class(reader, directory) -> bool:
    """Returns whether a reader, and this transformers, have a class for an export."""
    fields = json.loads((directory / "config.json").read_text())
    is_known = hasattr(transformers, fields["architectures"][0])
    return is_known and facts_of(directory).get("head") in HEADS.get(reader, (None, *AUTO))


def main() -> None:
    """Prints the versions, then what a reader says of each export that matches a pattern."""
    name, root, pattern = sys.argv[1:]
    print(json.dumps({"versions": versions()}), flush=True)
    for directory in sorted(pathlib.Path(root).glob(pattern)):
        export = str(directory.relative_to(root))
        result = {"export": export, "has_class": has_class(name, directory), "complaints": []}
        if result["has_class"]:
            try:
                result["complaints"] = READERS[name](directory, facts_of(directory))
            except Exception as error:  # a library's, of any kind: the table says it
                result["complaints"] = [f"{type(error).__name__}: {error}"]
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
