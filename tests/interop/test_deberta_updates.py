"""DeBERTa-v3's pretraining compared with a plain torch loop, given our masks and samples."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.convert import families, names
from bertjax.models import parameters
from bertjax.tasks import base, replaced_tokens
from bertjax.training import optim
from tests import lazily
from tests.models.test_mask_decoder import SIZES

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs", "heard")

UPDATES, RATE, WEIGHT, LIMIT = 60, 1e-3, 50.0, 1.0
BATCH, LENGTH, MASKS = 8, 14, 3
NOT_DECAYED = ("bias", "LayerNorm.weight")


def make_batch(step):
    """Rows of a few tokens that depend on each other, 3 of each masked; the last row has pads."""
    rng = np.random.default_rng(step)
    ids = (rng.integers(5, 25, (BATCH, 1)) + 2 * np.arange(LENGTH)).astype(np.int32)
    ids[:, 0] = 1
    mask = np.ones((BATCH, LENGTH), np.int32)
    mask[-1, 9:] = 0
    places = np.stack([rng.choice(np.arange(1, 9), MASKS, replace=False) for _ in range(BATCH)])
    labels = np.take_along_axis(ids, places, axis=1)
    masked = ids * mask
    np.put_along_axis(masked, places, 4, axis=1)
    return {
        "input_ids": masked,
        "input_mask": mask,
        "masked_lm_positions": places.astype(np.int32),
        "masked_lm_ids": labels,
        "masked_lm_weights": np.ones((BATCH, MASKS), np.float32),
        "example_weights": np.ones(BATCH, np.float32),
    }


class TorchModel:
    """Generator and discriminator by the formulas of microsoft/DeBERTa, from transformers' parts.

    The enhanced mask decoder computes queries at all places, as the released code does.
    """

    def __init__(self, params, task):
        table, family = families.named("deberta-v2").tensors, families.named("deberta-v2")
        self.parts = {}
        for part, sizes in (("generator", task.generator), ("discriminator", task.encoder)):
            fields = {it: field.written(sizes) for it, field in family.fields.items()}
            fields |= family.fixed | family.restated(sizes) | {"legacy": False}
            config = transformers.DebertaV2Config(**fields)
            kind = {"generator": "ForMaskedLM", "discriminator": "Model"}[part]
            self.parts[part] = getattr(transformers, f"DebertaV2{kind}")(config).train()
        prefix = "generator."
        of_generator = {
            path.removeprefix(prefix): x for path, x in params.items() if path.startswith(prefix)
        }
        own = {path: x for path, x in params.items() if path.startswith("encoder.")}
        words = "encoder.embeddings.word.embedding"
        delta = own.pop("encoder.embeddings.word_delta.embedding")
        self.positions = self.parameter(of_generator.pop("mask_decoder.position.embedding"))
        loaded = names.to_theirs(of_generator, names.of_head(table, "masked_lm"))
        old, new = "cls.predictions.transform.", "lm_predictions.lm_head."
        loaded = {name.replace(old, new): array for name, array in loaded.items()}
        loaded = {name.replace("cls.predictions.", new): array for name, array in loaded.items()}
        self.load(self.parts["generator"], loaded)
        loaded = names.to_theirs(own | {words: delta}, table)
        loaded = {name.removeprefix("deberta."): array for name, array in loaded.items()}
        self.load(self.parts["discriminator"], loaded)  # whose table is the difference
        self.head = {
            path.removeprefix("rtd_head."): self.parameter(array)
            for path, array in params.items()
            if path.startswith("rtd_head.")
        }

    @staticmethod
    def parameter(array):
        return torch.nn.Parameter(torch.tensor(np.asarray(array)))

    @staticmethod
    def load(model, arrays):
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        missing, unexpected = model.load_state_dict(tensors, strict=False)
        assert not unexpected and all("decoder" in it for it in missing), (missing, unexpected)

    def named(self):
        """The parameters of both models by name, in two groups."""
        generator = dict(self.parts["generator"].named_parameters()) | {"positions": self.positions}
        discriminator = dict(self.parts["discriminator"].named_parameters())
        names_of_head = {"norm.scale": "head.LayerNorm.weight"}
        discriminator |= {names_of_head.get(it, f"head.{it}"): x for it, x in self.head.items()}
        return generator, discriminator

    def losses(self, batch, sampled):
        ids, mask, places, labels = (
            torch.tensor(batch[name]).long()
            for name in ("input_ids", "input_mask", "masked_lm_positions", "masked_lm_ids")
        )
        generator, discriminator = self.parts["generator"], self.parts["discriminator"]
        encoder = generator.deberta.encoder
        states = generator.deberta(ids, mask, output_hidden_states=True).hidden_states[-2]
        hidden = states + self.positions[:LENGTH]
        for _ in range(2):
            hidden, _ = encoder.layer[-1](
                states,
                encoder.get_attention_mask(mask),
                query_states=hidden,
                relative_pos=encoder.get_rel_pos(states),
                rel_embeddings=encoder.get_rel_embedding(),
            )
        words = generator.deberta.embeddings.word_embeddings
        asked = hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[-1]))
        logits = generator.lm_predictions.lm_head(asked, words)
        mlm = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        corrupted = ids.scatter(1, places, torch.tensor(sampled).long())
        truth = ids.scatter(1, places, labels)
        table = words.weight.detach() + discriminator.embeddings.word_embeddings.weight
        embedded = torch.nn.functional.embedding(corrupted, table)
        x = discriminator(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
        p, eps = self.head, SIZES.layer_norm_eps
        x = torch.nn.functional.layer_norm(
            x + x[:, :1], x.shape[-1:], p["norm.scale"], p["norm.bias"], eps
        )
        x = torch.nn.functional.gelu(x @ p["dense.kernel"] + p["dense.bias"])
        x = (x @ p["output.kernel"] + p["output.bias"])[:, :, 0]
        labels = (corrupted != truth).float()
        binary = torch.nn.functional.binary_cross_entropy_with_logits(x, labels, reduction="none")
        return logits, mlm, (binary * mask).sum() / mask.sum()


def clipped_adam(groups, moments, limit):
    """An update of Adam without bias correction, of each model with a norm of its own."""
    for group in groups:
        norm = torch.sqrt(sum((it.grad**2).sum() for it in group.values() if it.grad is not None))
        for name, parameter in group.items():
            if parameter.grad is None:
                continue
            grad = parameter.grad * min(1.0, limit / float(norm))
            mean, square = moments.setdefault(
                id(parameter), (torch.zeros_like(grad), torch.zeros_like(grad))
            )
            mean.mul_(0.9).add_(0.1 * grad)
            square.mul_(0.999).add_(0.001 * grad**2)
            step = mean / (square.sqrt() + 1e-6)
            if not name.endswith(NOT_DECAYED):
                step = step + 0.01 * parameter.detach()
            with torch.no_grad():
                parameter -= RATE * step
            parameter.grad = None


def test_sixty_updates_have_the_losses_of_torch():
    generator = dataclasses.replace(SIZES, num_hidden_layers=2)
    task = replaced_tokens.ReplacedTokens(
        *(SIZES, generator, "gradient_disentangled"), discriminator_weight=WEIGHT
    )
    graphdef, shapes = base.abstract_model(task)
    rng = np.random.default_rng(5)

    def drawn(path, shape):
        if "delta" in path:
            return jnp.zeros(shape.shape)
        return jnp.float32(path.endswith("scale") + 0.1 * rng.standard_normal(shape.shape))

    flat = {path: drawn(path, leaf) for path, leaf in parameters.flat(shapes).items()}
    params = parameters.nested(flat)
    theirs, moments = TorchModel(flat, task), {}
    options = optim.OptimizerOptions(bias_correction=False, clip_apart="generator")
    optimizer = optim.make_optimizer(options, params)
    state = optimizer.init(params)

    @jax.jit
    def update(params, state, batch):
        def total(params):
            model = parameters.merge(graphdef, params)
            means = task.loss(model, batch, key=None)
            mlm, rtd = (
                means[name].total / means[name].weight
                for name in ("mlm_loss", "discriminator_loss")
            )
            return mlm + WEIGHT * rtd, (mlm, rtd)

        _, of_generator = task.parts(parameters.merge(graphdef, params))
        logits = of_generator.masked_logits(batch, batch["masked_lm_positions"])
        seeds = replaced_tokens.row_seeds(None, batch["input_ids"])
        sampled = replaced_tokens.sample(logits, seeds)
        grads, losses = jax.grad(total, has_aux=True)(params)
        moves, state = optimizer.update(
            grads, state, params, peak_learning_rate=RATE, key=jax.random.key(0)
        )
        params = jax.tree.map(lambda value, move: value - RATE * move, params, moves)
        return params, state, losses, sampled

    seen = []
    for step in range(UPDATES):
        batch = make_batch(step)
        params, state, losses, sampled = update(params, state, jax.tree.map(jnp.asarray, batch))
        _, mlm, rtd = theirs.losses(batch, np.asarray(sampled))
        (mlm + WEIGHT * rtd).backward()
        clipped_adam(theirs.named(), moments, LIMIT)
        wanted = float(mlm.detach()), float(rtd.detach())
        np.testing.assert_allclose(np.array(losses), wanted, rtol=1e-4, atol=1e-4)
        seen.append(wanted)
    assert seen[-1][0] < 0.8 * seen[0][0]  # it has learnt something
