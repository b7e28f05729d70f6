"""Distributions of tokens and delays, in AIPerf's words: a number, mean and stddev, or mean and median (lognormal)."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from traffic_profiles.text.draw import Draw

Number = Annotated[float, Field(ge=0, le=10_000_000, allow_inf_nan=False)]


class Lengths(BaseModel):
    """`512`, `{mean: 512, stddev: 64}`, or `{mean: 512, median: 400}` for a lognormal; `min` and `max` clamp."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    mean: Number
    stddev: Number = 0.0
    median: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    min: Number = 1.0
    max: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        return {"mean": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """A plain number is a length too."""
        return {"anyOf": [{"type": "number", "minimum": 0}, handler.resolve_ref_schema(handler(core))]}

    @model_validator(mode="after")
    def _possible(self) -> Lengths:
        if self.median is not None and self.stddev:
            raise ValueError("give stddev (normal) or median (lognormal), not both")
        if self.median is not None and self.mean < self.median:
            raise ValueError("a lognormal's mean is never below its median")
        if (self.stddev or self.median is not None) and self.max is None:
            raise ValueError("a distribution needs max: without it no context is ever long enough")
        if self.max is not None and not self.min <= self.mean <= self.max:
            raise ValueError("min <= mean <= max must hold")
        return self

    @property
    def longest(self) -> int:
        """The largest value a draw can give."""
        return round(self.max if self.max is not None else self.mean)

    @property
    def shortest(self) -> int:
        """The smallest value a draw can give."""
        return max(1, round(self.min if self.stddev or self.median else self.mean))

    def sample(self, draw: Draw) -> int:
        """One clamped draw, rounded, at least 1."""
        if self.median is not None:
            sigma = math.sqrt(2 * math.log(self.mean / self.median))
            value = self.median * math.exp(sigma * draw.normal())
        else:
            value = self.mean + self.stddev * draw.normal()
        return max(1, round(min(max(value, self.min), self.longest)))

    def __str__(self) -> str:
        spread = f" +/- {self.stddev:g}" if self.stddev else f", median {self.median:g}" if self.median else ""
        bounds = f" in {self.min:g}..{self.max:g}" if self.max is not None else ""
        return f"{self.mean:g}{spread}{bounds}"
