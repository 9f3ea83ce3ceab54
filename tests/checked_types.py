"""The checker of types that pyproject.toml gives to jaxtyping."""

import functools
import types

import beartype


def when_called(function):
    """Returns a function that checks its types; beartype reads them in its first call.

    To read all of them takes two thirds of importing the package.
    """
    if not isinstance(function, types.FunctionType):
        return beartype.beartype(function)

    @functools.cache
    def checked():
        return beartype.beartype(function)

    @functools.wraps(function)
    def check(*args, **options):
        return checked()(*args, **options)

    return check
