"""The table of all experts at one moment: what `/v1/experts` answers and the exports read."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from miractl.telemetry.snapshot import ExpertRow

SCHEMA = "miractl.experts/1"


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """One row for every (layer, expert) of the model, used or not, sorted."""

    timestamp: float  # unix seconds
    model: str
    rows: tuple[ExpertRow, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict with the schema's name."""
        rows = sorted(self.rows, key=lambda row: (row.layer, row.expert))
        return {
            "schema": SCHEMA,
            "timestamp": self.timestamp,
            "model": self.model,
            "experts": [asdict(row) for row in rows],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`. Raises ValueError, KeyError or TypeError for another shape."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema is {data.get('schema')!r}, expected {SCHEMA!r}")
        rows = sorted(
            (ExpertRow(**row) for row in data["experts"]), key=lambda row: (row.layer, row.expert)
        )
        return cls(float(data["timestamp"]), str(data["model"]), tuple(rows))
