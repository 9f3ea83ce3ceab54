"""The time of a token that is searched for by beams, and that of transformers' `generate`.

    python -m benchmarks.decoding

It needs torch and the extra `interop`. Both have the same random weights of an encoder-decoder of
two BERT-minis, the same sources and the same search. The end is never chosen, so all targets are
equally long. Rounds alternate; of each the compiled program's time alone counts. A token's time is
the difference between searches for `long` and for half as many tokens, divided by the difference:
the encoder's is not in it.
"""

# torch and transformers are in an environment of their own.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import functools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax import nnx

from benchmarks import report
from bertjax.convert import formats
from bertjax.models import decoder, generation, parameters

START, END, PAD = 101, 102, 0
SIZES = {
    **{"vocab_size": 30_522, "hidden_size": 256, "num_attention_heads": 4},
    **{"intermediate_size": 1024, "num_hidden_layers": 4, "max_position_embeddings": 512},
}
Search = Callable[[], np.ndarray]


def their_model() -> transformers.EncoderDecoderModel:
    """Returns an encoder-decoder that never chooses the end."""
    torch.manual_seed(0)
    sizes = transformers.BertConfig(**SIZES)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        *(sizes, transformers.BertConfig(**SIZES)),
        **{"decoder_start_token_id": START, "pad_token_id": PAD, "eos_token_id": END},
    )
    model = transformers.EncoderDecoderModel(config).eval()
    model.decoder.cls.predictions.bias.data[END] = -1e9
    return model


def ours(directory: pathlib.Path, sources: np.ndarray, beams: int, length: int) -> Search:
    """Returns a search of ours, compiled."""
    read = formats.read(directory)
    options = {"decoder_config": read.decoder, "shares": read.shares}
    made = functools.partial(decoder.EncoderDecoder, read.config, **options)
    graph, _ = parameters.split(nnx.eval_shape(lambda: made(rngs=nnx.Rngs(0))))
    search = generation.Search(START, END, PAD, length, beams=beams)
    ids = jnp.asarray(sources, jnp.int32)
    batch = {"input_ids": ids, "input_mask": jnp.ones_like(ids)}
    run = jax.jit(
        lambda params: generation.generate(parameters.merge(graph, params), batch, search)
    )
    params = jax.device_put(parameters.nested(dict(read.params)))
    return lambda: np.asarray(run(params).ids[:, 0])


def theirs(
    model: transformers.EncoderDecoderModel, sources: np.ndarray, beams: int, length: int
) -> Search:
    """Returns their search."""
    ids = torch.tensor(sources)
    options = {"num_beams": beams, "max_length": length + 1, "do_sample": False}
    options["attention_mask"] = torch.ones_like(ids)
    return torch.inference_mode()(lambda: model.generate(inputs=ids, **options)[:, 1:].numpy())


def timed(run: Search) -> float:
    """Returns the seconds of a call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    """Prints both times, their ratio, and whether all targets are the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--source", type=int, default=64, help="tokens of a source")
    parser.add_argument("--long", type=int, default=64, help="tokens of a target")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    model = their_model()
    sources = np.random.default_rng(0).integers(1000, 30_000, (options.batch, options.source))
    lengths = options.long, options.long // 2
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        runs = {
            "bertjax": [ours(pathlib.Path(directory), sources, options.beams, n) for n in lengths],
            "transformers": [theirs(model, sources, options.beams, n) for n in lengths],
        }
    found = {name: [run() for run in of] for name, of in runs.items()}
    same = [np.array_equal(*pair) for pair in zip(*found.values(), strict=True)]

    def token(name: str) -> float:
        long, short = runs[name]
        return 1e3 * (timed(long) - timed(short)) / (lengths[0] - lengths[1])

    times = report.take_turns({it: functools.partial(token, it) for it in runs}, options.rounds)
    for name, values in times.items():
        print(f"{name}: {report.median(values, unit=' ms')} a token of all targets")
    own, their = map(statistics.median, times.values())
    print(f"ratio {own / their:.2f}; same targets: {all(same)}")


if __name__ == "__main__":
    main()
