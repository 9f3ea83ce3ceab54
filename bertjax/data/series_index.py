"""Series, channels, times and units of the rows that forecast, in a file of the records.

Each row has the numbers of its series and channel, and the first step that it forecasts.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Float, Int

from bertjax.data import time_steps
from bertjax.files import opening

FILE = "series.npz"
FEATURES = ("series", "channel", "step")


@dataclasses.dataclass(frozen=True)
class SeriesIndex:
    """The names of series and channels, the scaling of channels, and the times of each series.

    A series without times has an empty array.
    """

    series: tuple[str, ...]
    channels: tuple[str, ...]
    means: Float[np.ndarray, " channels"]
    deviations: Float[np.ndarray, " channels"]
    times: tuple[np.ndarray, ...]

    @classmethod
    def load(cls, directory: epath.PathLike) -> SeriesIndex:
        """Reads the file of records.

        Raises:
          FileNotFoundError: if there is none.
          ValueError: if it lacks an array.
        """
        path = epath.Path(directory) / FILE
        kept = opening.read_arrays(path)
        try:
            series, channels = (tuple(kept[name].tolist()) for name in ("series", "channels"))
            times = np.split(kept["times"], np.cumsum(kept["lengths"])[:-1])
            return cls(series, channels, kept["means"], kept["deviations"], tuple(times))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be read: {error!r}; build the records again"
            ) from error

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the file."""
        return {
            "series": np.array(self.series),
            "channels": np.array(self.channels),
            "means": self.means,
            "deviations": self.deviations,
            "lengths": np.array([len(it) for it in self.times], np.int64),
            "times": np.concatenate(self.times),
        }

    def in_units(
        self, scaled: Float[np.ndarray, "rows steps"], channels: Int[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "rows steps"]:
        """Returns values of rows in the units of their channels."""
        return scaled * self.deviations[channels, None] + self.means[channels, None]

    def dates(self, series: int, steps: Int[np.ndarray, " steps"]) -> np.ndarray:
        """Returns the times of steps, also behind the last; of irregular times, the steps."""
        step = self._steps[series]
        return steps if step is None else step.times(self.times[series][0], steps)

    @functools.cached_property
    def _steps(self) -> tuple[time_steps.Step | None, ...]:
        usual = ((time_steps.Step.usual([times]), times) for times in self.times)
        return tuple(step if step and step.is_regular(times) else None for step, times in usual)


def written(times: np.ndarray) -> list[Any]:
    """Returns times as texts, numbers of times or steps as they are."""
    if times.dtype.kind == "M":
        unit: Any = "s" if (times.astype("datetime64[s]") == times).all() else "us"
        return np.datetime_as_string(times, unit=unit).tolist()
    return [int(it) if it == int(it) else it for it in times.tolist()]
