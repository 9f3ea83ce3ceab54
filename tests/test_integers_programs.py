"""Models of integers in the programs: masks are filled with ids, features and scores are of ids."""

import numpy as np
import pytest

from bertjax import encode, fill_mask, inference, models
from bertjax.convert import workdir
from bertjax.inference import likelihood
from bertjax.tokenization import tokenizer
from tests.convert import weights

FIELDS = {"vocab_size": 30, "pad_id": 0, "cls_id": 26, "sep_id": 27, "mask_id": 29}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    known = tokenizer.IntegerTokenizer(FIELDS)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = models.EncoderConfig(
        vocab_size=30, intermediate_size=24, max_position_embeddings=32, **sizes
    )
    made = weights.make("masked_lm", config=config, vocabulary=known, scale=0.3, norm_scale=1.0)
    directory = tmp_path_factory.mktemp("source") / "run"
    workdir.write(made, directory)
    return inference.load(directory)


@pytest.mark.slow  # three programs to compile
def test_programs_read_and_answer_ids(model):
    assert model.vocabulary.kind == "integers"
    masks = fill_mask.fill_mask(model, "5 [MASK] 17 3", num_candidates=30)
    assert {found["token"] for found in masks[0]} == set(map(str, range(30)))
    same = fill_mask.fill_mask(model, "5 29 17 3", num_candidates=30)
    assert same == masks
    parts = model.vocabulary.split_at_masks("5 [MASK] 17 3")
    assert fill_mask.filled(parts, [[{"token": "8"}]]) == "5 **8** 17 3"

    found = encode.encode(model, ["5 17 3", "9"], pooling="none")
    assert found["input_ids"].tolist() == [26, 5, 17, 3, 27, 26, 9, 27]
    assert found["features"].shape == (8, 16) and found["offsets"].tolist() == [0, 5]

    by_token, by_word = (
        next(iter(likelihood.scores(model, ["5 17 3"], masking=masking, batch_size=4)))
        for masking in ("token", "word_to_right")
    )
    assert by_token.num_tokens == 3 and by_token == by_word
    assert np.isfinite(by_token.log_likelihood)
    with pytest.raises(ValueError, match="'Hello' is not an id"):
        fill_mask.fill_mask(model, "Hello [MASK]")
