"""Search for the targets of sources: greedy, by sampling, or by beams.

Each shape of a batch has one program: loops over positions, whose step reads one token of each row
and the decoder's `Memory`. A second loop has a larger memory. The ids that are returned have no
start token, and padding after the end token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.models import decoder, layers
from bertjax.options import faults

MOST_IN_ONE_LOOP = 32  # places of a target; longer ones are searched for in two loops
TOKEN_BLOCK = 256  # tokens of which the best is found before any are sorted
_OF_BEAMS = ("length_penalty", "early_stopping")  # options that a search by beams reads
LOWEST = -1e9  # added to what must not be chosen, as transformers has it
# When a search by beams ends, as options name it -> as `Search` has it.
EARLY_STOPPING: dict[str, bool | str] = {"false": False, "true": True, "never": "never"}


@dataclasses.dataclass(frozen=True)
class Search:
    """The options of a search for targets; the defaults are a greedy search.

    `max_length` is the most tokens of a target, its end included. Beams are compared by their
    log-likelihood divided by their number of tokens to the power of `length_penalty`. With
    `early_stopping` the search ends when as many targets as beams have ended; without it when no
    running target can become better at its present length; with "never" at any length. No sequence
    of `no_repeat_ngram` tokens occurs twice in a target (0: it may). The end comes after at least
    `min_new_tokens` tokens. With `sampling` tokens are drawn from the `top_k` most probable ones
    (0: all), and of these from the fewest whose probability sums to at least `top_p`, after
    division of logits by `temperature`.
    Sources: Wu et al. 2016 (GNMT), equation 14, without its constant 5, as transformers has it;
    Fan et al. 2018 (top-k); Holtzman et al. 2020 (top-p).

    Raises:
      ValueError: listing what is out of range or does not go together.
    """

    start_id: int
    end_id: int
    pad_id: int = 0
    max_length: int = 64
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    no_repeat_ngram: int = 0
    min_new_tokens: int = 0
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        faults.check("the search cannot be used", self._faults())

    def _faults(self) -> Iterator[ValueError]:
        least = {"max_length": 1, "beams": 1, "no_repeat_ngram": 0, "min_new_tokens": 0, "top_k": 0}
        rules = [(name, getattr(self, name) >= it, f"at least {it}") for name, it in least.items()]
        rules += [
            (
                "min_new_tokens",
                self.min_new_tokens <= max(self.max_length, 0),
                f"at most max_length, {self.max_length}",
            ),
            (
                "early_stopping",
                self.early_stopping in EARLY_STOPPING.values(),
                'False, True or "never"',
            ),
            ("temperature", self.temperature > 0, "above 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("beams", not self.sampling or self.beams <= 1, "1 with sampling"),
        ]
        for name, is_kept, must in rules:
            if not is_kept:
                yield faults.wrong(name, getattr(self, name), must)
        unread = (
            {} if self.sampling else dict.fromkeys(("temperature", "top_k", "top_p"), "sampling")
        )
        unread |= {} if self.beams > 1 else dict.fromkeys(_OF_BEAMS, "beams above 1")
        for name, by in unread.items():
            default = getattr(Search, name)
            if getattr(self, name) != default:
                yield faults.unread(name, getattr(self, name), f"only {by} reads it", default)


def changed(search: Search, **given: Any) -> Search:
    """Returns the search with other options; without beams, the options of beams are dropped.

    Raises:
      ValueError: as `Search`.
    """
    beams = 1 if given.get("sampling") else search.beams
    given = {"beams": beams} | given
    if given["beams"] <= 1:
        given = {name: getattr(Search, name) for name in _OF_BEAMS} | given
    return dataclasses.replace(search, **given)


class Generated(NamedTuple):
    """The targets of each source, the best first; one without beams.

    `scores` are log-likelihoods in nats, end included; beams' are divided by their length penalty.
    """

    ids: Int[Array, "batch beams length"]
    scores: Float[Array, "batch beams"]


def generate(
    model: decoder.EncoderDecoder,
    batch: layers.Inputs,
    search: Search,
    *,
    keys: Key[Array, " batch"] | None = None,
) -> Generated:
    """Returns the targets of a batch of sources; without dropout.

    `keys` [batch] are the keys of sampling, one for each row.

    Raises:
      ValueError: if there are no keys to sample from.
    """
    if search.sampling and keys is None:
        raise faults.wrong("keys", None, "a key for each row, which sampling draws from")
    states, source = model.encoder(batch), decoder.source_of(batch)
    rows = len(states) * search.beams
    memory = model.decoder.memory(
        states, source, rows=rows, length=_rooms(search)[0], encoder=model.encoder
    )
    if search.beams > 1:
        return _beams(model, memory, search, len(states))
    return _one_by_one(model, memory, search, keys)


def _next_logits(
    model: decoder.EncoderDecoder, ids: Array, at: Array, memory: decoder.Memory
) -> tuple[Float[Array, "rows vocab"], decoder.Memory]:
    states, memory = model.decoder.step(ids, at, memory, encoder=model.encoder)
    return model.logits(states[:, None])[:, 0], memory


class _Rows(NamedTuple):
    at: Array
    ids: Int[Array, "rows places"]  # the start token, then those found
    scores: Float[Array, " rows"]
    has_ended: Bool[Array, " rows"]
    memory: decoder.Memory


def _one_by_one(
    model: decoder.EncoderDecoder,
    memory: decoder.Memory,
    search: Search,
    keys: Key[Array, " batch"] | None,
) -> Generated:
    """Searches with one target for each source: takes the best token, or draws one."""
    rows = len(memory.visible.is_real)

    def step(state: _Rows) -> _Rows:
        logits, memory = _next_logits(model, state.ids[:, state.at], state.at, state.memory)
        logits = _allowed(logits, state.ids, state.at, search)
        if search.sampling:
            assert keys is not None
            logits = _most_probable(logits / search.temperature, search)
            of_step = jax.vmap(jax.random.fold_in, (0, None))(keys, state.at)
            chosen = jax.vmap(jax.random.categorical)(of_step, logits)
        else:
            chosen = logits.argmax(axis=-1)
        shares = jax.nn.log_softmax(logits)
        of_chosen = jnp.take_along_axis(shares, chosen[:, None], axis=1)[:, 0]
        chosen = jnp.where(state.has_ended, search.pad_id, chosen).astype(jnp.int32)
        return _Rows(
            state.at + 1,
            _with_next(state.ids, chosen, state.at + 1),
            state.scores + jnp.where(state.has_ended, 0.0, of_chosen),
            state.has_ended | (chosen == search.end_id),
            memory,
        )

    def goes_on(state: _Rows) -> Array:
        return (state.at < search.max_length) & ~state.has_ended.all()

    ended = jnp.zeros(rows, bool)
    begun = _Rows(jnp.int32(0), _begun(rows, search), jnp.zeros(rows), ended, memory)
    found = _searched(goes_on, step, begun, search)
    return Generated(found.ids[:, None, 1:], found.scores[:, None])


class _Beams(NamedTuple):
    """Running and ended targets of each source, [batch, beams, ...]."""

    at: Array
    ids: Int[Array, "batch beams places"]
    scores: Float[Array, "batch beams"]
    ended_ids: Int[Array, "batch beams places"]
    ended_scores: Float[Array, "batch beams"]
    has_ended: Bool[Array, "batch beams"]
    can_improve: Bool[Array, "batch 1"]
    memory: decoder.Memory


_State = TypeVar("_State", _Rows, _Beams)


def _beams(
    model: decoder.EncoderDecoder, memory: decoder.Memory, search: Search, batch: int
) -> Generated:
    """Source: transformers 5.24, generation/utils.py, _beam_search: equal choices and scores."""
    beams = search.beams
    shape = (batch, beams)

    def step(state: _Beams) -> _Beams:
        flat = state.ids.reshape(batch * beams, -1)
        logits, memory = _next_logits(model, flat[:, state.at], state.at, state.memory)
        before = state.scores - jax.nn.logsumexp(logits, axis=-1).reshape(shape)
        logits = _allowed(logits, flat, state.at, search)
        # As many again as beams: the search goes on with those that have not ended.
        scores, origin, token = _best_continuations(logits.reshape(*shape, -1), before, 2 * beams)
        ids = _with_next(_taken(state.ids, origin), token, state.at + 1)
        length = state.at + 1
        ends = (token == search.end_id) | (length == search.max_length)
        going, best = jax.lax.top_k(jnp.where(ends, scores + LOWEST, scores), beams)
        chosen = jnp.take_along_axis(origin, best, axis=1)
        flat_chosen = (chosen + jnp.arange(batch)[:, None] * beams).reshape(-1)
        target = jax.tree.map(lambda x: x[flat_chosen], memory.target)
        ended = _with_ended(state, ids, scores, ends, length, search)
        can_improve = state.can_improve & _can_improve(going, ended, length, search)
        return _Beams(
            length, _taken(ids, best), going, *ended, can_improve, memory._replace(target=target)
        )

    def goes_on(state: _Beams) -> Array:
        is_open = state.can_improve.any() & (state.at < search.max_length)
        return is_open & ~((search.early_stopping is True) & state.has_ended.all())

    ids = _begun(batch * beams, search).reshape(*shape, -1)
    # The beams begin alike, so the first step chooses among the continuations of one.
    scores = jnp.broadcast_to(jnp.where(jnp.arange(beams) == 0, 0.0, LOWEST), shape)
    nothing = jnp.full(shape, LOWEST), jnp.zeros(shape, bool), jnp.ones((batch, 1), bool)
    begun = _Beams(jnp.int32(0), ids, scores, ids, *nothing, memory)
    found = _searched(goes_on, step, begun, search)
    return Generated(found.ended_ids[:, :, 1:], found.ended_scores)


def _best_continuations(
    logits: Float[Array, "batch beams vocab"], before: Float[Array, "batch beams"], count: int
) -> tuple[Float[Array, "batch count"], Int[Array, "batch count"], Int[Array, "batch count"]]:
    """Returns scores, beams and tokens of the best `count` of all continuations.

    A score is a logit and what its beam has `before` it. The best ones are in the blocks of tokens
    whose best are highest, so no other block is sorted; of equal ones the first are taken.
    """
    batch, beams, vocab = logits.shape
    blocks = -(-vocab // TOKEN_BLOCK)
    padding = blocks * TOKEN_BLOCK - vocab
    logits = jnp.pad(logits, ((0, 0), (0, 0), (0, padding)), constant_values=-jnp.inf)
    logits = logits.reshape(batch, beams, blocks, TOKEN_BLOCK)
    best = (logits.max(axis=-1) + before[:, :, None]).reshape(batch, -1)
    which = jnp.sort(jax.lax.top_k(best, min(count, beams * blocks))[1], axis=-1)
    few = jnp.take_along_axis(logits.reshape(batch, -1, TOKEN_BLOCK), which[:, :, None], axis=1)
    few += jnp.take_along_axis(before, which // blocks, axis=1)[:, :, None]
    scores, places = jax.lax.top_k(few.reshape(batch, -1), count)
    block = jnp.take_along_axis(which, places // TOKEN_BLOCK, axis=1)
    token = block % blocks * TOKEN_BLOCK + places % TOKEN_BLOCK
    return scores, block // blocks, token


def _with_ended(
    state: _Beams, ids: Array, scores: Array, ends: Array, length: Array, search: Search
) -> tuple[Array, Array, Array]:
    """Returns ids, scores and whether they have ended, of the best ended targets with new ones.

    Only the best continuations, as many as beams, may end.
    """
    ends &= jnp.arange(ends.shape[1])[None] < search.beams
    is_full = state.has_ended.all(axis=1, keepdims=True) & (search.early_stopping is True)
    may_end = ends & ~is_full & state.can_improve
    by_length = scores / length.astype(jnp.float32) ** search.length_penalty
    merged = jnp.concatenate([state.ended_scores, jnp.where(may_end, by_length, 2 * LOWEST)], 1)
    best_scores, best = jax.lax.top_k(merged, search.beams)
    both = jnp.concatenate([state.ended_ids, ids], axis=1)
    has_ended = jnp.concatenate([state.has_ended, may_end], axis=1)
    return _taken(both, best), best_scores, jnp.take_along_axis(has_ended, best, axis=1)


def _can_improve(
    scores: Array, ended: tuple[Array, Array, Array], length: Array, search: Search
) -> Bool[Array, "batch 1"]:
    """Returns whether a running target can become better than the worst ended one."""
    _, ended_scores, has_ended = ended
    if search.early_stopping == "never" and search.length_penalty > 0:
        length = jnp.int32(search.max_length)
    possible = scores[:, :1] / length.astype(jnp.float32) ** search.length_penalty
    worst = jnp.where(has_ended, ended_scores.min(axis=1, keepdims=True), LOWEST)
    return (possible > worst).any(axis=1, keepdims=True)


def _rooms(search: Search) -> list[int]:
    """Returns the size of the memory in each loop.

    A step reads and moves all positions, with tokens or without; each loop is compiled.
    """
    half = -(-search.max_length // 2)
    return (
        [half, search.max_length] if search.max_length > MOST_IN_ONE_LOOP else [search.max_length]
    )


def _searched(
    goes_on: Callable[[_State], Array],
    step: Callable[[_State], _State],
    state: _State,
    search: Search,
) -> _State:
    """Returns the state after all steps."""
    for places in _rooms(search):
        state = state._replace(memory=state.memory.with_room(places))

        def goes_on_here(state: _State, places=places) -> Array:
            return goes_on(state) & (state.at < places)

        state = jax.lax.while_loop(goes_on_here, step, state)
    return state


def _begun(rows: int, search: Search) -> Int[Array, "rows places"]:
    ids = jnp.full((rows, search.max_length + 1), search.pad_id, jnp.int32)
    return ids.at[:, 0].set(search.start_id)


def _with_next(ids: Array, chosen: Array, at: Array) -> Array:
    """Returns the ids with the chosen token in place `at` of the last axis."""
    return jax.lax.dynamic_update_slice_in_dim(ids, chosen[..., None], at, axis=ids.ndim - 1)


def _taken(x: Array, which: Array) -> Array:
    return jnp.take_along_axis(x, which[:, :, None], axis=1)


def _most_probable(logits: Float[Array, "rows vocab"], search: Search) -> Array:
    """Returns the logits with those that may not be drawn at minus infinity."""
    if 0 < search.top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, search.top_k)[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if search.top_p < 1:
        order = jnp.argsort(-logits, axis=-1)
        shares = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1))
        # The first whose share reaches top_p is the last that stays.
        is_left_out = jnp.cumsum(shares, axis=-1) - shares >= search.top_p
        of_token = jnp.argsort(order, axis=-1)
        logits = jnp.where(jnp.take_along_axis(is_left_out, of_token, -1), -jnp.inf, logits)
    return logits


def _allowed(
    logits: Float[Array, "rows vocab"], ids: Int[Array, "rows places"], at: Array, search: Search
) -> Float[Array, "rows vocab"]:
    """Returns the logits, minus infinity for repeats, and for an end that comes too soon."""
    logits = _without_repeats(logits, ids, at, search.no_repeat_ngram)
    if not search.min_new_tokens:
        return logits
    is_end = jnp.arange(logits.shape[-1]) == search.end_id
    return jnp.where(is_end & (at < search.min_new_tokens), -jnp.inf, logits)


def _without_repeats(
    scores: Float[Array, "rows vocab"], ids: Int[Array, "rows places"], at: Array, size: int
) -> Float[Array, "rows vocab"]:
    """Returns the scores, minus infinity where a token would repeat an n-gram of `size`.

    `ids` are known up to place `at`, the start token among them, as in transformers.
    """
    if not size:
        return scores
    rows, places = ids.shape
    if places < size:
        return scores
    starts = places - size + 1
    is_repeat = jnp.broadcast_to(jnp.arange(starts)[None] + size - 1 <= at, (rows, starts))
    for offset in range(size - 1):
        last = jax.lax.dynamic_index_in_dim(ids, at - size + 2 + offset, 1, keepdims=True)
        is_repeat &= ids[:, offset : offset + starts] == last
    banned = jnp.zeros(scores.shape, bool)
    banned = banned.at[jnp.arange(rows)[:, None], ids[:, size - 1 :]].max(is_repeat)
    return jnp.where(banned, -jnp.inf, scores)
