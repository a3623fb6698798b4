"""Generators of this library judged by `km.evaluate`: tables and pictures, two of each.

`python -m benchmarks.evaluate_generators` writes
`results/bench/evaluate-generators-<machine>.json`, from which the guide takes its numbers.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kermix as km
from kermix.data.dataset import toy
from kermix.environment import environment, machine_name
from kermix.files import write_json

__all__ = ["spiral_table"]

ROWS = 3000
PICTURES = 900  # of 1797, the others are held out
SCORES = (
    "fidelity", "classifier", "vendi_ratio", "rke_ratio", "invented", "missed", "precision",
    "recall", "density", "coverage", "kid", "frechet", "memorized", "nearer", "shape", "pairs",
)  # fmt: skip


def spiral_table(rows: int, seed: int) -> Any:
    """A table of numbers: two spirals, a skewed column and one that depends on both."""
    import pandas as pd

    generator = torch.Generator().manual_seed(seed)
    points = toy("2spirals").sample(rows, generator).double().numpy()
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "east": points[:, 0].round(3), "north": points[:, 1].round(3),
        "dose": np.exp(0.5 * points[:, 0] + 0.3 * rng.normal(size=rows)).round(3),
        "height": (points[:, 0] * points[:, 1] + 0.2 * rng.normal(size=rows)).round(3),
    })  # fmt: skip


def _tables(quick: bool) -> list[dict[str, Any]]:
    rows = 300 if quick else ROWS
    real, held = spiral_table(rows, 0), spiral_table(rows, 1)

    def mixture() -> Any:
        model = km.KernelMixture(random_state=0).fit(real.to_numpy())
        return real.__class__(model.sample(rows, random_state=1), columns=list(real))

    def table_model() -> Any:
        steps = 30 if quick else 1500
        model = km.TableModel(width=128, blocks=2, steps=steps, batch_size=512, random_state=0)
        return model.fit(real).sample(rows, random_state=1)

    def copier() -> Any:
        """New rows of the true distribution, and every twentieth a training row with noise."""
        noise = 0.002 * np.random.default_rng(2).normal(size=real.shape) * real.std().to_numpy()
        drawn = spiral_table(rows, 3)
        drawn.iloc[::20] = (real + noise).iloc[::20]
        return drawn

    return [
        _judged(name, make, real, held)
        for name, make in (
            ("mixture in closed form", mixture),
            ("table model", table_model),
            ("one row in twenty copied", copier),
        )
    ]


def _pictures(quick: bool) -> list[dict[str, Any]]:
    from sklearn.datasets import load_digits

    images = torch.from_numpy(load_digits().images / 16)[:, None].float()
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
    count = 60 if quick else PICTURES
    real, held = (s.flatten(1) for s in (images[:count], images[-count:]))

    def mixture() -> Any:
        model = km.KernelMixture(random_state=0).fit(real.numpy())
        return torch.from_numpy(model.sample(count, random_state=1)).float().clamp(0, 1)

    def network() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            _write(images[:count], Path(folder) / "digits")
            options: dict[str, Any] = {"steps": 2, "components": 16} if quick else {}
            run = km.fit(Path(folder) / "digits", model="conv", quick=True, device="cpu",
                         out=Path(folder) / "run", **options)  # fmt: skip
            drawn: Any = run.sample(count, 1)
            found = drawn[0] if isinstance(drawn, tuple) else drawn
            return found.reshape(count, -1).float().clamp(0, 1)

    return [
        _judged(name, make, real, held)
        for name, make in (("mixture in closed form", mixture), ("convolutional network", network))
    ]


def _write(images: torch.Tensor, folder: Path) -> None:
    from PIL import Image

    folder.mkdir()
    for k, image in enumerate(images):
        pixels = image[0].mul(255).round().byte().numpy()
        Image.fromarray(pixels).save(folder / f"{k:04}.png")


def _judged(name: str, make: Callable[[], Any], real: Any, held: Any) -> dict[str, Any]:
    start = time.perf_counter()
    samples = make()
    made = time.perf_counter() - start
    found = km.evaluate(real, samples, held_out=held)
    known = {s.name: s for s in found.scores}
    row: dict[str, Any] = {"generator": name, "rows": len(samples), "answer": found.answer}
    for score in SCORES:
        if score in known:
            row |= {score: known[score].value, f"{score}_error": known[score].error}
    row |= {"pvalue": found.verdict.pvalue, "copies_pvalue": known["memorized"].pvalue,
            "fidelity_if_same": known["fidelity"].if_same, "missed_modes": len(found.missed),
            "invented_modes": len(found.invented), "training_seconds": made}  # fmt: skip
    return row


def main(arguments: list[str] | None = None) -> Path:
    """Fit, judge, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path("results/bench") / f"evaluate-generators-{machine_name()}.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    about = environment()  # before the file makes the tree differ from its commit
    tables: dict[str, Any] = {}
    for name, made in (("spirals", _tables), ("digits", _pictures)):
        tables[name] = made(given.quick)
        write_json(given.out, {"benchmark": "evaluate-generators", "quick": given.quick,
                               **about, "tables": tables})  # fmt: skip
        for row in tables[name]:
            print(f"{name}, {row['generator']}: {row['answer']}", flush=True)
    return given.out


if __name__ == "__main__":
    main()
