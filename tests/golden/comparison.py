"""Quantities compared with expected values: the largest absolute error of each, and whether it is tolerable."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FLOOR, NOISE_FACTOR = 2e-5, 20


@dataclass(frozen=True)
class Comparison:
    """A quantity's worst error over everything that was compared under its name, and where it is."""

    quantity: str
    error: float
    tolerance: float
    where: str

    @property
    def ok(self) -> bool:
        """Within tolerance; an error that is not a number is not."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        """One line of a report."""
        verdict = "ok" if self.ok else f"OUT at {self.where}"
        return f"{self.quantity:<48} {self.error:8.1e}  tolerance {self.tolerance:7.1e}  {verdict}"


class Report:
    """Comparisons by quantity, in the order of their first mention; `notes` says what was left out, and why."""

    def __init__(self, title: str, noise: Mapping[str, float] | None = None, notes: Iterable[str] = ()) -> None:
        self.title, self.noise, self.notes = title, dict(noise or {}), list(notes)
        self._worst: dict[str, Comparison] = {}

    def __iter__(self) -> Iterator[Comparison]:
        """The comparisons."""
        return iter(self._worst.values())

    def add(self, quantity: str, where: str, found: Any, expected: Any, kind: str | None = None) -> None:
        """Compare numbers of the same shape to max(2e-5, 20 · noise).

        `kind` names a measured noise; without one it is float32's rounding at the size of each expected value.
        """
        found, expected = _numbers(found), _numbers(expected)
        if found.shape != expected.shape:
            self.put(quantity, f"{where} (shape {list(found.shape)} for {list(expected.shape)})", math.inf, FLOOR)
            return
        rounding = torch.nan_to_num(expected.abs(), nan=0.0, posinf=0.0) * torch.finfo(torch.float32).eps
        noise = rounding if kind is None else torch.full_like(expected, self.noise.get(kind, 0.0))
        tolerances = (NOISE_FACTOR * noise).clamp(min=FLOOR).flatten()
        errors = absolute_errors(found, expected).flatten()
        if errors.numel():
            worst = int((errors / tolerances).argmax())
            self.put(quantity, where, float(errors[worst]), float(tolerances[worst]))

    def same(self, quantity: str, where: str, found: object, expected: object) -> None:
        """Compare things that are either equal or not; the error is 0 or 1."""
        self.put(quantity, where, float(found != expected), 0.0)

    def put(self, quantity: str, where: str, error: float, tolerance: float) -> None:
        """Record an error; of several under one name the worst against its tolerance is kept."""
        quantity = f"{self.title} {quantity}"
        new = Comparison(quantity, error, tolerance, where)
        worst = max(self._worst.get(quantity, new), new, key=lambda one: (not one.ok, one.error / (one.tolerance or 1)))
        self._worst[quantity] = worst


def _numbers(value: Any) -> Tensor:
    return torch.as_tensor(value).detach().cpu().to(torch.float64)


def absolute_errors(found: Tensor, expected: Tensor) -> Tensor:
    """|found - expected| of equal shapes; 0 where both are the same infinity or no number, infinite where one is."""
    alike = (found == expected) | (found.isnan() & expected.isnan())
    return torch.nan_to_num(torch.where(alike, 0.0, (found - expected).abs()), nan=math.inf, posinf=math.inf)
