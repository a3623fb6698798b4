"""Metrics by batches: the values of all samples at once, also over processes and in Lightning."""

import math
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import kermix as km
import metric_ranks
from internals import frechet_distance, launch
from kermix.errors import OptionError, RankError, SampleError, SketchError

REAL = metric_ranks.points()
FAKE = 1.2 * REAL


def test_values_are_those_of_all_samples_at_once():
    found = metric_ranks.values(0, 1)
    features = km.metrics.Vendi(REAL, 2.0, rank=50).feature_map
    real, fake = (km.Sketch(features).update(s) for s in (REAL, FAKE))
    assert found["vendi"] == pytest.approx(float(km.metrics.vendi(fake)), rel=1e-9)
    assert found["rke"] == pytest.approx(float(km.metrics.rke(FAKE, 2.0)), rel=0.02)
    assert found["fidelity"] == pytest.approx(
        float(km.svd_cost(real, fake, normalized=True)), rel=1e-9
    )
    assert found["missed"] == pytest.approx(float(km.metrics.ken(real, fake)), rel=1e-9)
    assert found["frechet"] == pytest.approx(frechet_distance(REAL, FAKE), rel=1e-9)


def test_processes_give_the_value_of_one():
    found = launch(metric_ranks.on_ranks, False, devices=2)
    assert found == pytest.approx(metric_ranks.values(0, 1), rel=1e-9)


def test_processes_with_different_features_say_so():
    with pytest.raises(RankError, match="different features"):
        launch(metric_ranks.on_ranks, True, devices=2)


def test_metrics_are_reset_and_merged():
    metric = km.metrics.Vendi(REAL, 2.0, rank=50)
    metric.update(FAKE)
    whole = float(metric.compute())
    assert float(metric.error_bound) > 0
    metric.reset()
    with pytest.raises(SampleError, match="no samples"):
        metric.compute()
    metric.update(FAKE[:200])
    other = km.metrics.Vendi(metric.feature_map)
    other.update(FAKE[200:])
    metric.merge(other)
    assert float(metric.compute()) == pytest.approx(whole, rel=1e-9)
    metric.reset()
    assert float(metric(FAKE)) == pytest.approx(whole, rel=1e-9)
    distance = km.metrics.FrechetDistance(REAL)
    with pytest.raises(SampleError, match="two samples"):
        distance.compute()
    with pytest.raises(SketchError, match="other real"):
        distance.merge(km.metrics.FrechetDistance(FAKE))


def test_metrics_take_sketches_and_the_stable_variance():
    sketch = km.Sketch(km.nystrom_features(REAL, 2.0, 60)).update(REAL)
    metric = km.metrics.Fidelity(sketch)
    metric.update(REAL.float())
    assert float(metric.compute()) == pytest.approx(1, abs=1e-3)
    assert math.isfinite(float(km.metrics.Vendi(REAL)(FAKE)))


def test_bad_arguments_are_refused_by_name():
    features = km.nystrom_features(REAL, 0.3, 5)
    for call, error, text in (
        (lambda: km.metrics.Vendi(features, 0.3), OptionError, "feature map"),
        (lambda: km.metrics.KEN(REAL, 0.3, of="fake"), OptionError, "of='fake'"),
        (lambda: km.metrics.FrechetDistance(REAL).update(REAL[:, :1]), SampleError, "dimension 1"),
        (lambda: km.metrics.log_samples({"a": 1}), OptionError, "not a metric"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_lightning_logs_them_without_code_in_the_module(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning.pytorch as pl  # seconds, for this test alone

    class Generator(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def sample(self, count):
            return self.scale * torch.randn(count, 3, generator=torch.Generator().manual_seed(1))

        def training_step(self, batch, _):
            return (self.scale - batch[0].std()).square()

        def validation_step(self, batch, _):
            return None

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    data = DataLoader(TensorDataset(REAL.float()), batch_size=600)
    metrics = {
        "vendi": km.metrics.Vendi(REAL, 0.3, rank=30),
        "fidelity": km.metrics.Fidelity(REAL, 0.3, rank=30),
    }
    trainer = pl.Trainer(
        max_epochs=1, callbacks=[km.metrics.log_samples(metrics, count=300)], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, accelerator="cpu", num_sanity_val_steps=1,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, about workers and the like
        trainer.fit(Generator(), data, data)
    assert float(trainer.callback_metrics["fidelity"]) > 0.9
    assert float(trainer.callback_metrics["vendi"]) > 2
