"""The exact relations of a table in its model: flags, what follows once cells are seen, and kept.

Each relation has a *flag*, a column of codes of its own, which a network learns like any other
and draws before all: 1 if the relation holds in a row, 0 if it is broken, and 2 if the column that
it tells is empty. Where it holds, the column is known once its sources are. So a network neither
learns what follows nor is held to it in the rows that are exceptions: there it draws freely.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import counted
from kermix.data.schema.columns import UNKNOWN, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.tables.model.relations import (
    LookupRelation,
    OrderRelation,
    RawColumns,
    Relation,
    StepRelation,
)

__all__ = ["BROKEN", "EMPTY", "HOLDS", "ExactRelations"]

BROKEN, HOLDS, EMPTY = 0, 1, 2  # codes of flags


class ExactRelations:
    """Relations between the columns of a table, each after those that tell its sources.

    Args:
        schema: What the columns are.
        relations: What `kermix.tables.model.relation_search.find_relations` found.
    """

    def __init__(self, schema: Schema, relations: Sequence[Relation] = ()) -> None:
        self.relations = tuple(relations)
        self.columns = RawColumns(schema)
        self._missing = np.array(
            [UNKNOWN - 1 if c.missing_code is None else c.missing_code for c in schema.modelled]
        )
        self._numbers = [isinstance(c, NumberColumn) for c in schema.modelled]

    def __len__(self) -> int:
        return len(self.relations)

    @property
    def counts(self) -> tuple[int, ...]:
        """Codes of each flag."""
        return tuple(2 + self._may_be_empty(r) for r in self.relations)

    def _may_be_empty(self, relation: Relation) -> bool:
        return relation.determines and bool(self._missing[relation.place] >= 0)

    def closed(
        self,
        codes: Tensor,
        seen: Tensor,
        at: Tensor,
        places: Callable[[int, int], int],
        closed: Tensor,
    ) -> None:
        """Close codes that a cell cannot have by what is seen, in place.

        Args:
            codes: Codes of rows.
            seen: Which cells are.
            at: The column of each row that is drawn next, (N,).
            places: The logit of each code.
            closed: Logits that are not drawn, (N, T).
        """
        base = len(self._missing)
        for k, relation in enumerate(self.relations):
            flag, place = base + k, relation.place
            here = at == flag
            if relation.share >= 1:  # no exception in the fitted table
                closed[here, places(flag, BROKEN)] = True
            if self._may_be_empty(relation):
                closed[here & seen[:, place], places(flag, EMPTY)] = True
            filled = seen[:, flag] & (codes[:, flag] != EMPTY)
            for column in relation.places:
                # An exception has all cells; where the relation holds, a source may be empty.
                some = filled if column == place else filled & (codes[:, flag] == BROKEN)
                if self._missing[column] >= 0 and relation.determines:
                    gone = places(column, int(self._missing[column]))
                    closed[(at == column) & some, gone] = True
            if isinstance(relation, LookupRelation):
                holds = filled & (codes[:, flag] == HOLDS) & seen[:, place]
                self._close_keys(relation, codes, seen, at, holds, places, closed)

    def _close_keys(
        self,
        relation: LookupRelation,
        codes: Tensor,
        seen: Tensor,
        at: Tensor,
        holds: Tensor,
        places: Callable[[int, int], int],
        closed: Tensor,
    ) -> None:
        """Close values of the last source from which a value that is seen does not follow."""
        for source in relation.sources:
            others = [k for k in relation.sources if k != source]
            rows = (holds & (at == source) & seen[:, others].all(1)).nonzero().flatten()
            column = self.columns.schema.modelled[source]
            if not len(rows) or self._numbers[source]:
                continue
            known = [*others, relation.place]
            different, back = codes[rows][:, known].unique(dim=0, return_inverse=True)
            count = column.code_count - column.has_missing
            tried = np.zeros((len(different) * count, len(self._missing)), np.int64)
            tried[:, known] = different.cpu().numpy().repeat(count, 0)
            tried[:, source] = np.tile(np.arange(count), len(different))
            values = np.zeros((len(tried), len(self.columns.schema.numbers)))
            cells = self.columns.cells(EncodedTable(tried, values, ""), places=relation.places)
            good = relation.holds(self.columns, cells).reshape(len(different), count)
            good[~good.any(1)] = True  # none fits: an exception after all
            first = places(source, 0)
            wrong = torch.from_numpy(~good).to(closed.device)
            closed[rows, first : first + count] |= wrong[back]

    def _decided(
        self, k: int, codes: Tensor, seen: Tensor, column: int, state: int
    ) -> Tensor:  # (N,), bool
        """Rows whose flag is known to be in a state, and which have all other cells."""
        flag = len(self._missing) + k
        found = seen[:, flag] & (codes[:, flag] == state)
        for other in self.relations[k].places:
            if other != column:
                found = found & seen[:, other] & (codes[:, other] != self._missing[other])
        return found

    def _bounding(self, column: int) -> list[int]:
        """Relations by which a column may not be some values, once others and flags are seen."""
        return [k for k, r in enumerate(self.relations)
                if column == r.place or (column in r.places and not r.determines)]  # fmt: skip

    def open_codes(
        self, column: int, codes: Tensor, values: Tensor, seen: Tensor
    ) -> Tensor | None:
        """Codes that a column may have by the flags that are seen, (N, codes); None: all.

        Where a relation holds, an end is not before its start, and steps are kept; where it is
        broken, the column is not what follows.

        Args:
            column: Its place.
            codes: Codes of rows.
            values: Normal scores.
            seen: Which cells are seen.
        """
        own = self.columns.schema.modelled[column]
        found = None
        for k in self._bounding(column):
            relation = self.relations[k]
            for state in (HOLDS, BROKEN):
                rows = self._decided(k, codes, seen, column, state).nonzero().flatten()
                if not len(rows) or (relation.determines and state == HOLDS):
                    continue
                if found is None:
                    found = torch.ones(len(codes), own.code_count, dtype=torch.bool)
                    found = found.to(codes.device)
                encoded = self._encoded(codes[rows], values[rows])
                closed = self._closed_codes(relation, column, encoded, state)
                found[rows] &= ~torch.from_numpy(closed).to(codes.device)
        return found

    def _closed_codes(
        self, relation: Relation, column: int, encoded: EncodedTable, state: int
    ) -> np.ndarray:  # (N, codes), bool
        own = self.columns.schema.modelled[column]
        closed = np.zeros((len(encoded), own.code_count), bool)
        others = [k for k in relation.places if k != column]
        cells = self.columns.cells(encoded, places=others)
        if relation.determines:
            wanted = relation.expected(cells)
            good = self.columns.write(column, wanted, encoded.codes, encoded.values)
            good &= ~((encoded.codes[:, column] == 0) & self._numbers[column])
            closed[good, encoded.codes[good, column]] = True
            return closed
        assert isinstance(own, NumberColumn)
        atoms = slice(1, 1 + len(own.atoms))
        tried = np.repeat(cells, len(own.atoms), 0)
        tried[:, column] = np.tile(own.atoms, len(cells))
        holds = relation.holds(self.columns, tried).reshape(len(cells), -1)
        closed[:, atoms] = holds if state == BROKEN else ~holds
        return closed

    def lattice_share(self, column: int, codes: Tensor, seen: Tensor) -> Tensor:  # (N,)
        """How much denser a number is on its lattice, on which all draws are put, or off it.

        Args:
            column: Its place.
            codes: Codes of rows; where that of the column is not 0, its probability says it.
            seen: Which cells are seen.
        """
        found = torch.ones(len(codes), device=codes.device)
        for k, relation in enumerate(self.relations):
            if isinstance(relation, StepRelation) and relation.place == column:
                unit = 2 * self.columns.half_units[column] / relation.step
                for state, share in ((HOLDS, 1 / unit), (BROKEN, 1 / max(1e-3, 1 - unit))):
                    rows = self._decided(k, codes, seen, column, state) & (codes[:, column] == 0)
                    found = torch.where(rows, share, found)
        return found

    def contradicted(
        self, at: Tensor, codes: Tensor, values: Tensor, seen: Tensor
    ) -> Tensor:  # (N,), bool
        """Rows in which a cell that was just drawn contradicts a flag, where another may not.

        Args:
            at: The column of each row.
            codes: Codes of rows.
            values: Normal scores.
            seen: Which cells are seen, the one drawn among them.
        """
        found = torch.zeros(len(at), dtype=torch.bool, device=codes.device)
        for column in at.unique().tolist():
            for k in self._bounding(column) if column < len(self._missing) else ():
                relation = self.relations[k]
                here = (at == column) & (codes[:, column] != self._missing[column])
                if isinstance(relation, StepRelation):  # other numbers are put on the lattice
                    here &= codes[:, column] > 0
                for state in (BROKEN,) if relation.determines else (HOLDS, BROKEN):
                    rows = (
                        (here & self._decided(k, codes, seen, column, state)).nonzero().flatten()
                    )
                    if not len(rows):
                        continue
                    encoded = self._encoded(codes[rows], values[rows])
                    cells = self.columns.cells(encoded, places=relation.places)
                    holds = torch.from_numpy(relation.holds(self.columns, cells)).to(codes.device)
                    found[rows] |= holds == (state == BROKEN)
        return found

    @property
    def start_logits(self) -> list[float]:
        """Logits of all flags' codes before any training: the shares of rows."""
        found: list[float] = []
        for relation, count in zip(self.relations, self.counts, strict=True):
            broken = (1 - relation.share) * (1 - relation.empty)
            shares = broken, 1 - broken - relation.empty, relation.empty
            found += [math.log(max(share, 1e-4)) for share in shares[:count]]
        return found

    @property
    def determined(self) -> list[int]:
        """Columns that relations tell, in the order in which they follow."""
        return [relation.place for relation in self.relations if relation.determines]

    def about(self, places: Sequence[int]) -> list[int]:
        """The relations that some columns have a part in."""
        return [k for k, r in enumerate(self.relations) if set(places) & set(r.places)]

    def telling(
        self, places: Collection[int], known: Collection[int]
    ) -> tuple[list[int], list[int]]:
        """The relations that tell some columns, and those that tell their sources first.

        Args:
            places: The columns.
            known: Columns of which cells are seen.
        """
        reached, able = set(known), []
        for k, relation in enumerate(self.relations):
            if relation.determines and reached.issuperset(relation.sources):
                able.append(k)
                reached.add(relation.place)
        own = [k for k in able if self.relations[k].place in places]
        needed = {source for k in own for source in self.relations[k].sources} - set(known)
        before: list[int] = []
        for k in reversed(able):
            if self.relations[k].place in needed and k not in own:
                before.insert(0, k)
                needed |= {*self.relations[k].sources} - set(known)
        return own, before

    def solvable(self, places: Collection[int], known: Collection[int]) -> list[int]:
        """Relations all of whose columns are known but one of some: that may be computed back."""
        open_ = [{*relation.places} - set(known) for relation in self.relations]
        return [
            k
            for k, relation in enumerate(self.relations)
            if relation.determines and len(open_[k]) == 1 and open_[k] <= set(places)
        ]

    def solve(self, codes: Tensor, values: Tensor, seen: Tensor) -> None:
        """Fill in the only source that is not seen, where one value of it fits, in place.

        Args:
            codes: Codes of whole rows: of the table's columns, then flags, then others.
            values: Normal scores, (N, Q).
            seen: Cells that are known, (N, D); those that get a value are, afterwards.
        """
        for k, relation in enumerate(self.relations):
            places = list(relation.places)
            holds = seen[:, len(self._missing) + k] & (codes[:, len(self._missing) + k] == HOLDS)
            missing = torch.from_numpy(self._missing[places]).to(codes)
            some = holds & ((codes[:, places] != missing) | ~seen[:, places]).all(1)
            for source in relation.sources:
                others = [p for p in places if p != source]
                at = (some & ~seen[:, source] & seen[:, others].all(1)).nonzero().flatten()
                if len(at):
                    self._solve(relation, source, codes, values, seen, at)

    def _solve(
        self,
        relation: Relation,
        source: int,
        codes: Tensor,
        values: Tensor,
        seen: Tensor,
        rows: Tensor,
    ) -> None:
        encoded = self._encoded(codes[rows], values[rows])
        cells = self.columns.cells(encoded, places=relation.places)
        limits = relation.limits(self.columns, cells, source)
        if limits is None:
            return
        low, high = limits
        middle = (low + high) / 2
        cells[:, source] = self.columns.to_decimals(source, middle)
        unit = 2 * self.columns.half_units[source] + 1e-6 * np.abs(middle)
        one = relation.holds(self.columns, cells) & (high - low <= unit)
        wanted = np.where(one, cells[:, source], np.nan)
        good = self.columns.write(source, wanted, encoded.codes, encoded.values)
        self._take(source, encoded, good, codes, values, seen, rows)

    def flags(self, encoded: EncodedTable) -> np.ndarray:  # (N, R)
        """Codes of the flags of encoded rows; -1 where a cell that decides is not known."""
        found = np.full((len(encoded), len(self)), HOLDS, np.int64)
        if not len(self):
            return found
        cells = self.columns.cells(encoded)
        for k, relation in enumerate(self.relations):
            codes = encoded.codes[:, list(relation.places)]
            gone = codes == self._missing[list(relation.places)]
            every = ~gone.any(1)
            found[every & ~relation.holds(self.columns, cells), k] = BROKEN
            found[((codes < 0) & ~gone).any(1), k] = UNKNOWN
            if self._may_be_empty(relation):
                found[gone[:, -1], k] = EMPTY
        return found

    def implied(self, codes: Tensor, seen: Tensor) -> Tensor:
        """Cells that are known once some are seen.

        Args:
            codes: Codes of whole rows: of the table's columns, then flags, then others.
            seen: Which cells are.
        """
        if not len(self):
            return seen
        seen, base = seen.clone(), len(self._missing)
        for k, relation in enumerate(self.relations):
            flag, places = base + k, list(relation.places)
            seen[:, flag] |= seen[:, places].all(1) | self._empty(relation, codes, seen)
            if relation.determines:
                known = seen[:, flag]
                holds = known & (codes[:, flag] == HOLDS) & self._there(relation, codes, seen)
                seen[:, relation.place] |= holds | (known & (codes[:, flag] == EMPTY))
        return seen

    def _empty(self, relation: Relation, codes: Tensor, seen: Tensor) -> Tensor:
        own = seen[:, relation.place] & (codes[:, relation.place] == self._missing[relation.place])
        return own & self._may_be_empty(relation)

    def _there(self, relation: Relation, codes: Tensor, seen: Tensor) -> Tensor:
        """Rows in which all sources are seen, and none is empty."""
        found = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
        for source in relation.sources:
            found &= seen[:, source] & (codes[:, source] != self._missing[source])
        return found

    def transferred(self, codes: Tensor, values: Tensor, seen: Tensor) -> None:
        """Fill in what follows, in place.

        Args:
            codes: Codes, (N, D).
            values: Normal scores, (N, Q).
            seen: Cells that are known, (N, D); those that get a value are, afterwards.
        """
        base = len(self._missing)
        for k, relation in enumerate(self.relations):
            flag, place = base + k, relation.place
            if not relation.determines:
                continue
            empty = self._empty(relation, codes, seen) & ~seen[:, flag]
            codes[empty, flag] = EMPTY
            seen[:, flag] |= empty
            open_ = seen[:, flag] & ~seen[:, place]
            if self._may_be_empty(relation):
                gone = open_ & (codes[:, flag] == EMPTY)
                codes[gone, place] = int(self._missing[place])
                seen[:, place] |= gone
            at = (open_ & (codes[:, flag] == HOLDS) & self._there(relation, codes, seen)).nonzero()
            if len(at):
                self._fill(relation, codes, values, seen, at.flatten())

    def _fill(
        self, relation: Relation, codes: Tensor, values: Tensor, seen: Tensor, rows: Tensor
    ) -> None:
        encoded = self._encoded(codes[rows], values[rows])
        cells = self.columns.cells(encoded, places=relation.sources)
        good = self._put(relation, cells, encoded, np.ones(len(rows), bool))
        self._take(relation.place, encoded, good, codes, values, seen, rows)

    def _take(
        self,
        place: int,
        encoded: EncodedTable,
        good: np.ndarray,
        codes: Tensor,
        values: Tensor,
        seen: Tensor,
        rows: Tensor,
    ) -> None:
        """Put the good cells of a column, encoded for some rows, where they belong."""
        at = rows[torch.from_numpy(good).to(rows.device)]
        new = torch.from_numpy(encoded.codes[good, place]).to(codes)
        codes[at, place] = new
        if self._numbers[place]:
            number = self.columns.number(place)
            values[at, number] = torch.from_numpy(encoded.values[good, number]).to(values)
        seen[at, place] = True

    def _encoded(self, codes: Tensor, values: Tensor) -> EncodedTable:
        own = codes[:, : len(self._missing)]
        return EncodedTable(own.cpu().numpy().copy(), values.double().cpu().numpy().copy(), "")

    def _put(
        self, relation: Relation, cells: np.ndarray, encoded: EncodedTable, rows: np.ndarray
    ) -> np.ndarray:  # (N,), bool
        """Write what follows into some rows, and into their raw cells; which of them took it."""
        wanted = np.where(rows, relation.expected(cells), np.nan)
        good = self.columns.write(relation.place, wanted, encoded.codes, encoded.values)
        cells[good, relation.place] = self.columns.to_decimals(relation.place, wanted[good])
        return good

    def settled(
        self,
        encoded: EncodedTable,
        flags: np.ndarray,
        given: np.ndarray,
        at_last: bool = True,
    ) -> tuple[EncodedTable, np.ndarray]:
        """Completed rows in which relations hold to the last digit, and where one does not yet.

        An exception that keeps its relation by chance is none yet, either.

        A column that was drawn follows from its sources; where it was given itself, a source that
        was drawn is moved to the nearest value from which it follows.

        Args:
            encoded: The rows.
            flags: Codes of the flags, (N, R).
            given: Cells that stay as they are, (N, D).
            at_last: Whether an end before its start becomes equal to it; a new draw is better.
        """
        broken = np.zeros(len(encoded), bool)
        if not len(self):
            return encoded, broken
        encoded = replace(encoded, codes=encoded.codes.copy(), values=encoded.values.copy())
        cells = self.columns.cells(encoded)
        for k, relation in enumerate(self.relations):
            self._move_source(relation, cells, encoded, flags[:, k] == HOLDS, given)
        for k, relation in enumerate(self.relations):
            self._follow(relation, cells, encoded, flags[:, k] == HOLDS, given, at_last)
        for k, relation in enumerate(self.relations):
            broken |= (flags[:, k] == HOLDS) & self._is_broken(relation, cells, at_last)
            exceptions = (flags[:, k] == BROKEN) & relation.known(cells)
            broken[exceptions] |= relation.holds(self.columns, cells[exceptions])
        return encoded, broken

    def _follow(
        self,
        relation: Relation,
        cells: np.ndarray,
        encoded: EncodedTable,
        holds: np.ndarray,
        given: np.ndarray,
        at_last: bool,
    ) -> None:
        """Write what follows from sources, where it was not given."""
        if relation.determines or isinstance(relation, StepRelation):
            there = ~np.isnan(cells[:, relation.place]) & ~given[:, relation.place]
            self._put(relation, cells, encoded, holds & there)
        elif at_last and isinstance(relation, OrderRelation):
            wrong = relation.known(cells) & ~relation.holds(self.columns, cells)
            self._reorder(relation, cells, encoded, wrong & holds, given)

    def _is_broken(self, relation: Relation, cells: np.ndarray, at_last: bool) -> np.ndarray:
        wrong = relation.known(cells) & ~relation.holds(self.columns, cells)
        if isinstance(relation, OrderRelation) and not at_last:
            first, second = relation.bounds(cells)[0], cells[:, relation.place]
            unit = 2.1 * self.columns.half_units[relation.place] + 1e-5 * np.abs(second)
            wrong &= first - second > unit  # what rounding did is put right at last
        return np.asarray(wrong)

    def _move_source(
        self,
        relation: Relation,
        cells: np.ndarray,
        encoded: EncodedTable,
        holds: np.ndarray,
        given: np.ndarray,
    ) -> None:
        """Where a column was given, move a source that was not, the finest first, to fit it."""
        told, units = set(self.determined), self.columns.half_units
        rows = holds & given[:, relation.place] & relation.known(cells)
        rows &= ~relation.holds(self.columns, cells)
        for source in sorted(relation.sources, key=lambda k: units[k]):
            free = rows & ~given[:, source]
            limits = relation.limits(self.columns, cells, source)
            if source in told or limits is None or not free.any():
                continue
            low, high = limits
            # Not at the very ends, which rounding would lead across.
            inside = np.clip(
                cells[:, source], low + 0.01 * (high - low), high - 0.01 * (high - low)
            )
            tried = cells.copy()
            tried[:, source] = self.columns.to_decimals(source, inside)
            free &= relation.holds(self.columns, tried)
            wanted = np.where(free, tried[:, source], np.nan)
            good = self.columns.write(source, wanted, encoded.codes, encoded.values)
            cells[good, source] = wanted[good]
            rows &= ~good

    def _reorder(
        self,
        relation: OrderRelation,
        cells: np.ndarray,
        encoded: EncodedTable,
        wrong: np.ndarray,
        given: np.ndarray,
    ) -> None:
        """Move the end to its start, or the start to its end, whichever was not given."""
        step = 0.0 if relation.ties else 2 * self.columns.half_units[relation.place]
        bounds = relation.bounds(cells)
        for place, bound, way in zip(reversed(relation.places), bounds, (1, -1), strict=True):
            wanted = np.where(wrong & ~given[:, place], bound + way * step, np.nan)
            good = self.columns.write(place, wanted, encoded.codes, encoded.values)
            cells[good, place] = self.columns.to_decimals(place, wanted[good])
            wrong = wrong & ~good

    def settle(
        self, codes: Tensor, values: Tensor, given: Tensor, at_last: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same for rows of a network: codes, values, and which rows are broken."""
        if not len(self):
            return codes, values, torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
        base = len(self._missing)
        flags = codes[:, base : base + len(self)].cpu().numpy()
        found, broken = self.settled(
            self._encoded(codes, values), flags, given[:, :base].cpu().numpy(), at_last
        )
        own = torch.from_numpy(found.codes).to(codes)
        codes = torch.cat([own, codes[:, base:]], 1)
        return (codes, torch.from_numpy(found.values).to(values),
                torch.from_numpy(broken).to(codes.device))  # fmt: skip

    def descriptions(self) -> list[str]:
        """A line for each: "b = v / 3000, in 98.9 % of rows"."""
        return [relation.description(self.columns) for relation in self.relations]

    def exceptions(self, encoded: EncodedTable, flags: np.ndarray, given: np.ndarray) -> list[str]:
        """What is said of rows that break a relation because of what was given, a clause each."""
        found, cells = [], self.columns.cells(encoded, exact=given)
        for k, relation in enumerate(self.relations):
            some = given[:, list(relation.places)]
            forced = some.all(1) | (some.any(1) & (flags[:, k] == HOLDS))
            forced &= relation.known(cells) & ~relation.holds(self.columns, cells)
            if forced.any():
                told = relation.description(self.columns)
                here = f"{forced.sum()} of {counted(len(some), 'row')} here"
                found.append(f"{told} that the model was fitted to, but not in {here}")
        return found
