"""Claims about the cache: entries come back, keys differ; test_planner damages its entries."""

import pathlib

from bertjax.plan import cache
from bertjax.training import planned


def test_an_entry_comes_back_and_another_key_has_none(tmp_path):
    cache.write(tmp_path / "new", "a", {"x": [1, 2.5, None]})
    assert cache.read(tmp_path / "new", "a") == {"x": [1, 2.5, None]}
    assert cache.read(tmp_path / "new", "b") is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]  # no draft stays


def test_a_digest_depends_on_values_and_not_on_their_order():
    assert planned.digest({"a": 1, "b": 2}) == planned.digest({"b": 2, "a": 1})
    assert planned.digest({"a": 1, "b": 2}) != planned.digest({"a": 1, "b": 3})


def test_the_environment_tells_versions_flags_and_source(monkeypatch):
    before = cache.environment()
    assert before == cache.environment()
    assert set(before["versions"]) == {"jax", "jaxlib", "libtpu", "flax", "optax"}
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=65536")
    assert cache.environment() != before


def test_the_directory_is_the_users_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.default_directory() == pathlib.Path("/somewhere/bertjax/plan")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.default_directory() == pathlib.Path("/home/someone/.cache/bertjax/plan")
