"""Runs many cases in many processes, and counts what they found."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from benchmarks.fuzz import costs, measures, mistakes, mixtures, parts
from benchmarks.fuzz.case import Case, run_case

__all__ = ["KINDS", "fuzz", "kind_of", "replay", "run"]


class Kind(NamedTuple):
    """What to call, how often relative to others, and whether it takes long."""

    call: Callable[[Case], None]
    share: float
    slow: bool = False


KINDS = {
    "scalar cost": Kind(costs.scalar_cost, 10),
    "vector cost": Kind(costs.vector_cost, 10),
    "matrix cost": Kind(costs.matrix_cost, 10),
    "svd cost": Kind(costs.svd_cost, 12),
    "gradient": Kind(costs.gradient_and_value, 10),
    "loss": Kind(costs.loss_of, 7),
    "debiased loss": Kind(costs.debiased_loss, 1.5),
    "gram": Kind(parts.gram, 6),
    "choose_variance": Kind(parts.choose_variance, 4),
    "nuclear norm": Kind(parts.nuclear_norm, 4),
    "vector weights": Kind(parts.best_weights, 3),
    "decomposition": Kind(parts.decompose, 4),
    "sketch": Kind(measures.sketch, 4),
    "sketch loss": Kind(measures.sketch_loss, 2),
    "two-sample test": Kind(measures.two_sample_test, 3),
    "mixture density": Kind(mixtures.mixture_density, 4),
    "mixture inner product": Kind(mixtures.mixture_inner, 4),
    "mixture norm": Kind(mixtures.mixture_norm, 3),
    "mixture moments": Kind(mixtures.mixture_moments, 2),
    "bad input": Kind(mistakes.mistake, 6),
    "comparison": Kind(measures.compare, 1, slow=True),
    "threshold": Kind(costs.threshold_cost, 0.2, slow=True),
    "large comparison": Kind(measures.large_compare, 0.03, slow=True),
    "large sketch": Kind(measures.large_sketch, 0.1, slow=True),
    "estimator": Kind(measures.kernel_mixture, 0.1, slow=True),
}
CHUNK = 50
MOST_FINDINGS = 200
# A single call of the largest sets takes some seconds; one that takes this long hangs.
CASE_SECONDS = 900
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _TooSlowError(BaseException):
    """Not an Exception, so that no code under test can catch it."""


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """The tables of the benchmark: 100,000 cases, or 2,000 without the slow kinds."""
    return fuzz(2000, slow=False) if quick else fuzz()


def fuzz(
    cases: int = 100_000,
    seed: int = 0,
    processes: int | None = None,
    limit_s: float = 3600.0,
    slow: bool = True,
) -> dict[str, list[dict[str, Any]]]:
    """Run cases and return tables of counts, of checks and of the first findings.

    Args:
        cases: How many, from number 0 on.
        seed: Seed of all of them.
        processes: How many processes; by default one for each core.
        limit_s: No new cases are begun after so many seconds; the table says how many were done.
        slow: Whether to make cases of the slow kinds, too.
    """
    started = time.perf_counter()
    count = processes or _cores()
    results = []
    for result in _chunks(cases, seed, count, started + limit_s, slow):
        results.extend(result)
    results.sort(key=lambda r: r["case"])
    summary = {
        "cases": len(results),
        "asked_for": cases,
        "findings": sum(len(r["findings"]) for r in results),
        "cases_with_findings": sum(bool(r["findings"]) for r in results),
        "seed": seed,
        "processes": count,
        "seconds": time.perf_counter() - started,
    }
    return {"fuzz": [summary], **_tables(results)}


def replay(number: int, seed: int = 0) -> Case:
    """One case alone, as it was in any run with that seed."""
    case = Case(number, seed)
    return run_case(case, KINDS[kind_of(case)].call)


def kind_of(case: Case) -> str:
    """What the case calls; the first thing that is drawn from its generator."""
    shares = torch.tensor([k.share for k in KINDS.values()], dtype=torch.float64)
    point = case.rng.random() * float(shares.sum())
    index = int(torch.searchsorted(shares.cumsum(0), point))
    return list(KINDS)[min(index, len(KINDS) - 1)]


def run_chunk(first: int, last: int, seed: int, slow: bool) -> list[dict[str, Any]]:
    """The cases of one task, one result for each that was made."""
    torch.set_num_threads(1)
    return [r for n in range(first, last) if (r := _result(n, seed, slow)) is not None]


def _result(number: int, seed: int, slow: bool) -> dict[str, Any] | None:
    case = Case(number, seed)
    kind = kind_of(case)
    if KINDS[kind].slow and not slow:
        return None
    began = time.perf_counter()
    try:
        with _alarm(CASE_SECONDS):
            run_case(case, KINDS[kind].call)
    except _TooSlowError:
        case.found("too slow", f"more than {CASE_SECONDS} s")
    return {
        "case": number,
        "kind": kind,
        "function": case.function or kind,
        "checks": dict(case.checks),
        "findings": case.report(),
        "seconds": time.perf_counter() - began,
    }


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Ends what takes too long; an alarm that someone else had set is set again afterwards."""

    def stop(*_: object) -> None:
        raise _TooSlowError

    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    began = time.perf_counter()
    handler = signal.signal(signal.SIGALRM, stop)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            passed = time.perf_counter() - began
            signal.setitimer(signal.ITIMER_REAL, max(remaining - passed, 1e-3))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that start here compute with one thread; more would wait for each other."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _chunks(
    cases: int, seed: int, processes: int, deadline: float, slow: bool
) -> Iterator[list[dict[str, Any]]]:
    starts = iter(range(0, cases, CHUNK))

    def arguments(first: int) -> tuple[int, int, int, bool]:
        return first, min(first + CHUNK, cases), seed, slow

    if processes == 1:
        for first in starts:
            if time.perf_counter() > deadline:
                return
            yield run_chunk(*arguments(first))
        return
    context = multiprocessing.get_context("spawn")
    with _one_thread_each(), ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting: dict[Future, int] = {}
        while True:
            while len(waiting) < 2 * processes and time.perf_counter() < deadline:
                following = next(starts, None)
                if following is None:
                    break
                waiting[pool.submit(run_chunk, *arguments(following))] = following
            if not waiting:
                return
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                first = waiting.pop(done)
                try:
                    yield done.result()
                except BrokenProcessPool:
                    yield [_crash(first)]
                    return


def _crash(first: int) -> dict[str, Any]:
    finding = {
        "case": first, "function": "", "category": "crash", "setting": "",
        "what": f"a process ended while cases from {first} on ran",
    }  # fmt: skip
    return {
        "case": first, "kind": "", "function": "", "checks": {}, "findings": [finding],
        "seconds": 0.0,
    }  # fmt: skip


def _tables(results: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    calls = Counter(r["function"] for r in results)
    seconds: Counter[str] = Counter()
    checks: Counter[str] = Counter()
    for r in results:
        seconds[r["function"]] += r["seconds"]
        checks.update(r["checks"])
    findings = [f for r in results for f in r["findings"]]
    by_function = Counter(f["function"] for f in findings)
    by_category = Counter(f["category"] for f in findings)
    categories = [{"category": c, "findings": n} for c, n in by_category.most_common()]
    return {
        "functions": [
            {
                "function": name,
                "calls": calls[name],
                "findings": by_function[name],
                "seconds": seconds[name],
            }
            for name in sorted(set(calls) | set(by_function))
        ],
        "checks": [{"check": name, "made": checks[name]} for name in sorted(checks)],
        **({"categories": categories, "findings": findings[:MOST_FINDINGS]} if findings else {}),
    }


def _cores() -> int:
    return (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
