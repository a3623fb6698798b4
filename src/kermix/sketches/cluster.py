"""Sketching on a Dask cluster: parts on workers, sums merged in a tree."""

import logging
import pkgutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kermix.data.tables.batches import Part
from kermix.data.tables.mixed_rows import MixedRows
from kermix.errors import ClusterError, KermixError, MissingExtraError
from kermix.sketches.features import NystromFeatures
from kermix.sketches.part_sums import PartSums, absolute, sketch_part
from kermix.version import __version__

__all__ = ["sketch_on_cluster"]

MERGED_AT_ONCE = 8
SECONDS_TO_CONNECT = 10


def sketch_on_cluster(
    parts: Sequence[Part],
    features: NystromFeatures,
    scheduler: str | None,
    workers: int | None,
    tick: Callable[[int], None],
    maker: MixedRows | None = None,
) -> PartSums:
    """Sums over all parts.

    A task is a pure function of its part, so what a lost worker had done is done again by
    another, and its result replaces the lost one: nothing is counted twice. Sums are merged in an
    order that does not depend on which worker was faster.
    """
    distributed = _distributed()
    with _client(scheduler, workers) as client:
        _check_workers(client)
        name = f"kermix-sketch-{uuid.uuid4().hex[:12]}"
        # Computed by a task, not scattered: data that was scattered dies with its worker.
        map_ = client.submit(
            NystromFeatures,
            features.landmarks,
            features.kernel,
            features.scale,
            features.chosen_from,
            key=f"{name}-map",
        )
        # On every worker: Dask likes to send tasks to the one that has what they need.
        distributed.wait(map_)
        client.replicate(map_)
        where = scheduler is not None
        level = [
            client.submit(_task, absolute(part), map_, where, maker, key=f"{name}-part-{k}")
            for k, part in enumerate(parts)
        ]
        places = dict(zip((f.key for f in level), parts, strict=True))
        done = distributed.as_completed(level)
        depth = 0
        # At least once, also for a single part: parts are released below, sums are not.
        while depth == 0 or len(level) > 1:
            groups = [level[k : k + MERGED_AT_ONCE] for k in range(0, len(level), MERGED_AT_ONCE)]
            level = [
                client.submit(_merged, group, key=f"{name}-merge-{depth}-{k}")
                for k, group in enumerate(groups)
            ]
            depth += 1
        for future in done:
            if future.status == "error":
                raise _explained(future.exception(), places[future.key])
            tick(places[future.key].size)
            future.release()
        try:
            found: PartSums = level[0].result()
        except Exception as error:
            raise _explained(error, None) from error
    names = {absolute(part).address: part.address for part in parts}
    return found._replace(counts={names[n]: count for n, count in found.counts.items()})


def _task(
    part: Part, features: NystromFeatures, name_worker: bool, maker: MixedRows | None
) -> PartSums:
    try:
        return sketch_part(part, features, maker=maker)
    except KermixError as error:
        if not name_worker:
            raise
        from distributed import get_worker

        raise type(error)(f"{error} (on worker {get_worker().address})") from None


def _merged(parts: list[PartSums]) -> PartSums:
    total = parts[0]
    for part in parts[1:]:
        total = total.plus(part)
    return total


def _explained(error: BaseException, part: Part | None) -> Exception:
    if isinstance(error, KermixError):
        return error
    name = "the sums were merged" if part is None else f"{part.address} was read"
    if type(error).__name__ == "KilledWorker":
        return ClusterError(
            f"Workers died again and again while {name}: {error}. They may have too little memory."
        )
    return ClusterError(f"A worker failed while {name}: {type(error).__name__}: {error}")


@contextmanager
def _client(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    distributed = _distributed()
    if scheduler is None:
        with (
            distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=":0",
                silence_logs=logging.ERROR,
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = distributed.Client(scheduler, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise ClusterError(f"The scheduler {scheduler} does not answer ({error}).") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=SECONDS_TO_CONNECT)
        except TimeoutError:
            raise ClusterError(f"The scheduler {scheduler} has no workers.") from None
        yield client


def _check_workers(client: Any) -> None:
    """Refuse to begin if a worker has no kermix, or another version of it."""
    # A function of the standard library: ours could not be sent to a worker without kermix.
    found = client.run(pkgutil.resolve_name, "kermix:__version__", on_error="return")
    for worker, answer in found.items():
        if isinstance(answer, Exception):
            raise ClusterError(
                f"The worker {worker} cannot import kermix ({type(answer).__name__}: {answer}); "
                "install the same version of kermix there."
            )
        if answer != __version__:
            raise ClusterError(
                f"The worker {worker} has kermix {answer}, but this is {__version__}; sketches "
                "can only be merged from equal versions."
            )


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise MissingExtraError("Clusters need Dask: pip install 'kermix[dask]'.") from None
    return distributed
