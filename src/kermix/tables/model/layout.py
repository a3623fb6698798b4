"""How the codes and numbers of a table lie in the inputs and outputs of a network.

A network knows a number that it sees only roughly, so it cannot put a narrow mixture where another
column is almost the same: last month's bill and this month's. Means of mixtures may therefore move
with some *regressors*, the numbers that a column is most correlated with, by factors that the
network returns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.frames import Frame
from kermix.data.schema.monotone import MonotoneMap
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.tables.model.absences import Absence
from kermix.tables.model.equal_columns import (
    Link,
    copy_equal_columns,
    implied,
    link_codes,
    linked,
    transferred,
    with_equal_columns,
)
from kermix.tables.model.exact_relations import BROKEN, ExactRelations
from kermix.tables.model.linear_relations import Lines
from kermix.tables.model.relations import Relation
from kermix.tables.model.repeated_values import RepeatedValues, repeated_of

__all__ = ["REGRESSORS", "TableLayout", "regressor_places"]

# Reasoned, no record.
REGRESSORS = 3


def regressor_places(
    schema: Schema, regressors: Sequence[Sequence[str]]
) -> tuple[tuple[int, ...], ...]:
    """Regressors by their place among the numbers; -1 where there are fewer than there may be."""
    names = [column.name for column in schema.numbers]
    if not any(regressors):
        return ()
    return tuple(
        tuple(names.index(row[k]) if k < len(row) else -1 for k in range(REGRESSORS))
        for row in regressors
    )


@dataclass(frozen=True)
class TableLayout:
    """Codes of all columns in one row, column after column.

    Attributes:
        counts: Codes of each column.
        numbers: Which columns have a continuous part: code 0 says that the number counts.
        positions: Where on the scale of normal scores each code lies, if anywhere, else 0.
        links: Columns that are often equal. Whether they are is a column of two codes each, after
            those of the table and the flags of exact relations.
        regressors: For each number, others that its mixture moves with, or -1; empty if there are
            none at all.
        equal_pairs: Columns that are equal in all rows: the first of some, and another one.
        lines: What numbers tell about each other by straight lines, if it is much.
        maps: The scale of normal scores of each number.
        atoms: How many codes of each number, after the first, stand for values.
        ends: Normal scores of the smallest and the largest value of each number; empty if any
            value may be drawn.
        absences: Where columns have no value.
        repeated: Numbers all of whose values repeat, whose logits are those of cells.
        exact: What columns follow from others, if any do. Whether each relation holds is a
            column of codes, after those of the table.

    Example:
        >>> layout = TableLayout((2, 3), (1,), (0.0, 0.0, 0.0, -1.0, 1.0))
        >>> layout.offsets.tolist(), layout.segments.tolist()
        ([0, 2], [0, 0, 1, 1, 1])
    """

    counts: tuple[int, ...]
    numbers: tuple[int, ...]
    positions: tuple[float, ...]
    links: tuple[Link, ...] = ()
    regressors: tuple[tuple[int, ...], ...] = ()
    equal_pairs: tuple[tuple[int, int], ...] = ()
    lines: Lines | None = None
    maps: tuple[MonotoneMap, ...] = ()
    atoms: tuple[int, ...] = ()
    ends: tuple[tuple[float, float], ...] = ()
    absences: tuple[Absence, ...] = ()
    repeated: tuple[RepeatedValues, ...] = ()
    exact: ExactRelations | None = None

    @classmethod
    def of(
        cls,
        schema: Schema,
        equal: Sequence[tuple[str, str]] = (),
        regressors: Sequence[Sequence[str]] = (),
        same: Sequence[tuple[str, str]] = (),
        lines: Lines | None = None,
        absences: Sequence[Absence] = (),
        repeated: Sequence[RepeatedValues] = (),
        exact: Sequence[Relation] = (),
    ) -> "TableLayout":
        """The layout of a schema's columns.

        Args:
            schema: What the columns are.
            equal: Pairs that are often equal.
            regressors: For each number, the names of those that it follows closely.
            same: Pairs that are equal in all rows.
            lines: What `kermix.tables.model.linear_relations.find_lines` found.
            absences: What `kermix.tables.model.absences.find_absences` found.
            repeated: What `kermix.tables.model.repeated_values.find_repeated` found.
            exact: What `kermix.tables.model.relation_search.find_relations` found.
        """
        counts, numbers = schema.code_counts, tuple(int(k) for k in schema.number_columns)
        places = [np.zeros(count) for count in counts]
        for k, column in zip(numbers, schema.numbers, strict=True):
            places[k] = column.positions(np.arange(counts[k]), np.zeros(counts[k]))
        links = linked(schema, equal) if equal else ()
        relations = ExactRelations(schema, exact)
        more = (*relations.counts, *(2,) * len(links))
        places.append(np.zeros(sum(more)))
        counts = (*counts, *more)
        positions = tuple(np.concatenate(places).tolist())
        names = {column.name: k for k, column in enumerate(schema.modelled)}
        equal_pairs = tuple((names[a], names[b]) for a, b in same)
        closest = regressor_places(schema, regressors)
        scales = [(c.map, len(c.atoms), tuple(c.map(np.array([c.low, c.high])).tolist()))
                  for c in schema.numbers]  # fmt: skip
        maps, atoms, ends = zip(*scales, strict=True) if scales else ((), (), ())
        return cls(counts, numbers, positions, links, closest, equal_pairs, lines, maps,
                   atoms, ends, tuple(absences), tuple(repeated),
                   relations if exact else None)  # fmt: skip

    def relations(self, schema: Schema) -> dict[str, Any]:
        """What `with_relations` needs besides the schema, as plain names."""
        columns = [column.name for column in schema.modelled]
        numbers = [column.name for column in schema.numbers]
        return {
            "equal": [(columns[link.first], columns[link.second]) for link in self.links],
            "regressors": [[numbers[k] for k in row if k >= 0] for row in self.regressors],
            "same": [(columns[a], columns[b]) for a, b in self.equal_pairs],
            "lines": None if self.lines is None else self.lines.to_dict(),
            "absences": [absence.to_dict(columns) for absence in self.absences],
            "exact": [relation.to_dict(columns) for relation in self.found_relations],
            "repeated": {columns[own.column]: own.counts.tolist() for own in self.repeated},
        }

    @classmethod
    def with_relations(cls, schema: Schema, content: Mapping[str, Any]) -> "TableLayout":
        """The layout of a model that was saved."""
        lines = content["lines"]
        columns = [column.name for column in schema.modelled]
        absences = [Absence.from_dict(saved, columns) for saved in content["absences"]]
        return cls.of(
            schema, content["equal"], content["regressors"], content["same"],
            None if lines is None else Lines.from_dict(lines), absences,
            repeated_of(schema, content["repeated"]) if content["repeated"] else (),
            [Relation.from_dict(saved, columns) for saved in content["exact"]],
        )  # fmt: skip

    @property
    def found_relations(self) -> tuple[Relation, ...]:
        """What columns follow from others."""
        return () if self.exact is None else self.exact.relations

    def with_flags(self, schema: Schema, frame: Frame, encoded: EncodedTable) -> EncodedTable:
        """A table's codes, followed by whether relations hold and whether columns are equal.

        Args:
            schema: What the columns are.
            frame: The table, or some of its columns.
            encoded: Its cells; codes are -1 where a cell is not known.
        """
        more = [link_codes(schema, self.links, frame, encoded.codes)]
        if self.exact is not None:
            more.insert(0, self.exact.flags(encoded))
        return replace(encoded, codes=np.concatenate([encoded.codes, *more], 1))

    def about(self, places: Sequence[int]) -> list[int]:
        """Columns that say whether some of the table's are equal to others, or follow."""
        links = self.columns - len(self.links)
        found = [links + k for k, link in enumerate(self.links)
                 if link.first in places or link.second in places]  # fmt: skip
        if self.exact is not None:
            found += [self.table_columns + k for k in self.exact.about(places)]
        return found

    def deciders(self, place: int, seen: Tensor) -> tuple[list[int], list[int]]:
        """What says whether a column is told by others that are seen, and those told before it.

        Args:
            place: The column.
            seen: Cells that are, (N, D).
        """
        equal, known = self.equal_to(place), {int(k) for k in seen.any(0).nonzero()}
        links, own, before = self.columns - len(self.links), [], []
        if self.exact is not None:
            told, first = self.exact.telling(equal, known)
            told += [k for k in self.exact.solvable(equal, known) if k not in told]
            own, before = ([self.table_columns + k for k in found] for found in (told, first))
        for k, link in enumerate(self.links):
            ends = {link.first, link.second}
            if ends & set(equal) and ends & known:
                own.append(links + k)
        return own, before

    def impossible(self, decider: int) -> list[int]:
        """Codes that a column that says whether others are told never has."""
        k = decider - self.table_columns
        if self.exact is None or k >= len(self.exact):
            return []
        return [BROKEN] if self.exact.relations[k].share >= 1 else []

    @cached_property
    def drawing_keys(self) -> Tensor:  # (D,)
        """What is drawn when: what says whether relations hold, columns, and what follows last."""
        found = torch.zeros(self.columns)
        found[: self.table_columns] = 1
        for k, place in enumerate([] if self.exact is None else self.exact.determined):
            found[place] = 2 + k
        return found

    @cached_property
    def drawing_ranks(self) -> Tensor:  # (D,)
        """The place of each column in the order of drawing."""
        keys = self.drawing_keys + torch.arange(self.columns) / (1 + self.columns)
        return keys.argsort().argsort()

    def implied(self, codes: Tensor, seen: Tensor) -> Tensor:  # (N, D)
        """Cells that are known once some are seen: columns are equal, or follow from others."""
        seen = with_equal_columns(
            self.equal_pairs,
            implied(self.links, codes, with_equal_columns(self.equal_pairs, seen)),
        )
        if self.exact is None:
            return seen
        return with_equal_columns(self.equal_pairs, self.exact.implied(codes, seen))

    def transferred(self, codes: Tensor, values: Tensor, seen: Tensor) -> None:
        """Fill in such cells, in place."""
        steps = [self._follow_links] if self.links else []
        steps += [] if self.exact is None else [self.exact.transferred]
        if self.equal_pairs:
            self._copy_equal(codes, values, seen)
        for step in steps:
            step(codes, values, seen)
            if self.equal_pairs:
                self._copy_equal(codes, values, seen)

    def _copy_equal(self, codes: Tensor, values: Tensor, seen: Tensor) -> None:
        copy_equal_columns(self.equal_pairs, self.number_of_column, codes, values, seen)

    def _follow_links(self, codes: Tensor, values: Tensor, seen: Tensor) -> None:
        for place, link in enumerate(self.links, self.columns - len(self.links)):
            for column in (link.first, link.second):  # an atom or a gap equals no number
                unlike = seen[:, column] & (codes[:, column] != 0) & ~seen[:, place]
                codes[:, place] = codes[:, place].masked_fill(unlike, 0)
                seen[:, place] |= unlike
        transferred(self.links, self.number_of_column.to(codes.device), codes, values, seen)

    def equal_to(self, place: int) -> list[int]:
        """Columns that are equal to one in all rows, the column itself among them."""
        first = next((a for a, b in self.equal_pairs if b == place), place)
        return [first, *(b for a, b in self.equal_pairs if a == first)]

    @property
    def columns(self) -> int:
        """Columns that the network models, links and flags among them."""
        return len(self.counts)

    @property
    def table_columns(self) -> int:
        """Columns of the table."""
        return len(self.counts) - len(self.links) - len(self.found_relations)

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Logits of each column: one for each code, but for values that repeat, one for a cell."""
        found = list(self.counts)
        for own in self.repeated:
            found[own.column] = own.units
        return tuple(found)

    @property
    def total(self) -> int:
        """Logits of all columns together."""
        return sum(self.units)

    @cached_property
    def offsets(self) -> Tensor:  # (D,)
        """Where the logits of each column begin."""
        return torch.tensor([0, *self.units[:-1]]).cumsum(0)

    @cached_property
    def code_offsets(self) -> Tensor:  # (D,)
        """Where the codes of each column begin."""
        return torch.tensor([0, *self.counts[:-1]]).cumsum(0)

    @cached_property
    def segments(self) -> Tensor:  # (T,)
        """The column of each logit."""
        return torch.repeat_interleave(torch.tensor(self.units))

    @cached_property
    def unit_of_code(self) -> Tensor:  # (codes,)
        """The logit of each code, by its place among all."""
        parts = [np.arange(count) for count in self.counts]
        for own in self.repeated:
            parts[own.column] = own.unit_of_code
        starts = zip(parts, self.offsets.tolist(), strict=True)
        return torch.from_numpy(np.concatenate([part + start for part, start in starts]))

    def logit_of(self, column: int, code: int) -> int:
        """The place of a column's code among all logits."""
        return int(self.unit_of_code[self.code_offsets[column] + code])

    @cached_property
    def shown_by_code(self) -> Tensor:  # (codes,), bool
        """Which codes a network sees as such, not by the place of their value alone."""
        parts = [np.ones(count, bool) for count in self.counts]
        for own in self.repeated:
            parts[own.column] = own.shown_by_code
        return torch.from_numpy(np.concatenate(parts))

    @cached_property
    def number_of_column(self) -> Tensor:  # (D,)
        """Which number a column has, or -1."""
        found = torch.full((self.columns,), -1)
        found[list(self.numbers)] = torch.arange(len(self.numbers))
        return found

    def encoded(self, codes: Tensor, values: Tensor, frame: str) -> EncodedTable:
        """Tensors as a table that a schema decodes."""
        own = codes[:, : self.table_columns]
        return EncodedTable(own.cpu().numpy(), values.double().cpu().numpy(), frame)
