"""Models of one column of a table: classes and numbers, test rows, scores, resuming, refusals."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import trapezoid

import kermix as km
from commands import kermix
from internals import (
    as_frame,
    begin_fit,
    load_checkpoint,
    open_run,
    schema_of,
    split_for_target,
)
from internals import train_train as train
from kermix import errors

SMALL = ("--set", "steps=120", "--set", "blocks=1", "--width", "16", "--learning-rate", "0.01",
         "--device", "cpu")  # fmt: skip


def plants(rows=600, seed=0):
    """A kind that follows from a length but for some noise, and a weight that follows too."""
    rng = np.random.default_rng(seed)
    length = rng.normal(10, 3, rows).round(2)
    kind = np.where(length + rng.normal(0, 1, rows) > 11, "tall", "low")
    kind[rng.random(rows) < 0.05] = "odd"
    weight = np.exp(0.2 * length + rng.normal(0, 0.3, rows)).round(3)
    place = rng.choice(["hill", "bog"], rows)
    return pd.DataFrame({"length": length, "place": place, "kind": kind, "weight": weight})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    plants().to_csv(path / "plants.csv", index=False)
    plants(200, seed=1).to_csv(path / "new.csv", index=False)
    return path


@pytest.fixture(scope="module")
def classes(folder):
    shown = kermix("classify", folder / "plants.csv", "--target", "kind", "--out",
                   folder / "kind", *SMALL).output  # fmt: skip
    return open_run(folder / "kind"), shown


@pytest.fixture(scope="module")
def numbers(folder):
    shown = kermix("classify", folder / "plants.csv", "--target", "weight", "--out",
                   folder / "weight", *SMALL).output  # fmt: skip
    return open_run(folder / "weight"), shown


def test_the_first_line_of_a_classification_is_its_accuracy(classes):
    run, shown = classes
    assert run.kind.name == "target"
    result = json.loads((run.folder / "result.json").read_text())
    first = next(line for line in shown.splitlines() if "test rows" in line)
    assert first.startswith("accuracy")
    assert f"{result['accuracy']:.2%} of 119 test rows" in first
    assert "found as" in shown
    assert "odd" in shown
    # What the length tells, and no more: about one in seven is on the wrong side or odd.
    often = result["references"][0]
    assert often[0] == "the most frequent class"
    assert often[1] + 0.15 < result["accuracy"] < 0.97
    assert result["log_loss"] < often[2] - 0.15


def test_numbers_of_a_classification_are_those_of_scikit_learn(classes, folder):
    from sklearn.metrics import balanced_accuracy_score, confusion_matrix, log_loss

    run, _ = classes
    data = run.dataset()
    test = pd.DataFrame({n: c.to_pandas() for n, c in data.test.columns.items()})
    model, result = run.model(), json.loads((run.folder / "result.json").read_text())
    found = model.predict(test.drop(columns="kind"))
    chances = model.predict_proba(test.drop(columns="kind"))
    names = list(model.classes())
    assert result["classes"] == names
    assert result["accuracy"] == pytest.approx((found == test["kind"]).mean())
    assert result["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(test["kind"], found)
    )
    assert result["log_loss"] == pytest.approx(log_loss(test["kind"], chances, labels=names))
    assert (np.array(result["confusion"]) == confusion_matrix(test["kind"], found)).all()
    known = pd.DataFrame({n: c.to_pandas() for n, c in data.frame.columns.items()})
    assert len(known) + len(test) == 600
    assert not set(test["weight"]) <= set(known["weight"])  # other rows


def test_classes_without_test_rows_are_named_beside_the_mean_over_classes(tmp_path):
    rare = plants(200).assign(kind=["tall", "low"] * 99 + ["odd", "odd"])
    rare.to_csv(tmp_path / "rare.csv", index=False)
    shown = kermix("classify", tmp_path / "rare.csv", "--target", "kind", "--out",
                   tmp_path / "run", *SMALL, "--set", "steps=3").output  # fmt: skip
    told = "the mean over classes of which there are test rows; there are none of odd"
    assert told in " ".join(shown.split())


def test_a_number_is_a_regression_and_said_so(numbers):
    run, shown = numbers
    assert "this is a regression" in " ".join(shown.split())
    lines = [line for line in shown.splitlines() if line and not line.startswith("note")]
    assert any(line.startswith("error") for line in lines)
    result = json.loads((run.folder / "result.json").read_text())
    assert result["target"] == "number"
    assert 0.3 < result["r2"] < 1
    inside = dict(map(tuple, result["coverage"]))
    assert set(inside) == {0.5, 0.9, 0.95}
    assert 0.3 < inside[0.5] < 0.7 < inside[0.9] <= inside[0.95]
    data = run.dataset()
    test = pd.DataFrame({n: c.to_pandas() for n, c in data.test.columns.items()})
    found = run.model().conditional("weight", test.drop(columns="weight"))
    error = np.sqrt(((found.mean() - test["weight"]) ** 2).mean())
    assert result["error"] == pytest.approx(error)
    assert result["r2"] == pytest.approx(1 - error**2 / test["weight"].var(ddof=0))


def test_the_mean_is_the_integral_of_the_survival_function(numbers):
    run, _ = numbers
    found = run.model().conditional("weight", {"length": [6.0, 14.0], "place": ["bog", "hill"]})
    column = found.column
    grid = np.linspace(column.low, column.high, 1501)
    above = np.array([1 - found.cdf(np.full(2, v)) for v in grid])
    wanted = column.low + trapezoid(above, grid, axis=0)
    # The distribution function is that of values rounded to three decimals.
    np.testing.assert_allclose(found.mean(), wanted, rtol=2e-3)


def test_predict_writes_labels_and_probabilities(classes, folder, tmp_path):
    run, _ = classes
    kermix("predict", run.folder, folder / "new.csv", "-o", tmp_path / "kinds.csv")
    table = pd.read_csv(tmp_path / "kinds.csv")
    assert list(table) == ["row", "kind", "probability", "p(low)", "p(odd)", "p(tall)"]
    chances = table[["p(low)", "p(odd)", "p(tall)"]].to_numpy()
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    assert (table["kind"] == np.array(["low", "odd", "tall"])[chances.argmax(1)]).all()


def test_predict_writes_mean_median_and_quantiles(numbers, folder, tmp_path):
    run, _ = numbers
    kermix("predict", run.folder, folder / "new.csv", "-o", tmp_path / "weights.csv")
    table = pd.read_csv(tmp_path / "weights.csv")
    assert list(table) == ["row", "weight", "weight mean", "weight 5%", "weight 25%", "weight 50%",
                           "weight 75%", "weight 95%"]  # fmt: skip
    assert (table["weight 5%"] < table["weight 95%"]).all()
    assert (table["weight mean"] > table["weight 50%"]).mean() > 0.8  # skewed to the right


def test_score_is_the_density_of_the_target_alone(numbers, classes, folder):
    new = plants(200, seed=1)
    run, _ = classes
    chances = run.model().predict_proba(new.drop(columns="kind"))
    at = np.searchsorted(["low", "odd", "tall"], new["kind"])
    np.testing.assert_allclose(run.score(new), np.log(chances[np.arange(200), at]), rtol=1e-6)
    run, _ = numbers
    own = run.score(new.head(1))[0]
    # Against differences of the distribution function, over some of the steps it is rounded to.
    found = run.model().conditional("weight", new.head(1).drop(columns="weight"))
    value, step = float(new["weight"][0]), 0.05
    slope = (found.cdf(value + step) - found.cdf(value - step))[0] / (2 * step)
    assert own == pytest.approx(np.log(slope), abs=0.05)
    printed = kermix("score", run.folder, folder / "new.csv").stdout.splitlines()
    assert len(printed) == 200
    assert float(printed[0]) == pytest.approx(own, abs=1e-5)


def test_test_rows_are_a_fifth_of_each_class_and_never_a_whole_one():
    table = pd.DataFrame({"c": ["a"] * 100 + ["b"] * 10 + ["rare"] * 4 + [None] * 7,
                          "x": np.arange(121.0)})  # fmt: skip
    schema = km.Schema.infer(table)
    train_rows, test_rows = split_for_target(as_frame(table), schema["c"], 3)
    count = lambda f: f.columns["c"].to_pandas().value_counts().to_dict()  # noqa: E731
    assert count(test_rows) == {"a": 20, "b": 2}
    assert count(train_rows) == {"a": 80, "b": 8, "rare": 4}
    other = split_for_target(as_frame(table), schema["c"], 4)[1]
    assert other.columns["x"].to_pylist() != test_rows.columns["x"].to_pylist()


def test_nothing_of_the_test_rows_is_in_the_schema(folder, tmp_path):
    table = plants()
    schema = km.Schema.infer(table)
    _, test = split_for_target(as_frame(table), schema["kind"], 0)
    row = table.index[table["length"] == test.columns["length"][0].as_py()][0]
    table.loc[row, "place"] = "roof"  # a value that training never sees
    table.loc[row, "length"] = 99.0
    table.to_csv(tmp_path / "t.csv", index=False)
    run, data = begin_fit(
        tmp_path / "t.csv", out=tmp_path / "run", quick=True, target="kind", target_share=1,
        device="cpu", steps=8, width=16, blocks=1,
    )  # fmt: skip
    assert schema_of(run)["length"].high < 30
    assert "roof" not in schema_of(run)["place"].values
    outcome = train(run, data)
    run.finish(data, outcome)  # an unseen value is left open
    assert json.loads((run.folder / "result.json").read_text())["rows"] == 119


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(folder, tmp_path):
    weights = []
    for name, stops in (("whole", False), ("parts", True)):
        run, data = begin_fit(
            folder / "plants.csv", out=tmp_path / name, quick=True, target="kind",
            target_share=1, device="cpu", steps=16, width=16, blocks=1,
        )  # fmt: skip
        if stops:
            trainer = run.trainer(data)
            run.train(trainer, should_stop=lambda trainer=trainer: trainer.step >= 7)
            assert 0 < trainer.step < 16
            kermix("resume", run.folder)
        else:
            train(run, data)
        weights.append(load_checkpoint(run.checkpoints / "model.safetensors")[0])
    assert all((weights[0][n] == weights[1][n]).all() for n in weights[0])


def test_what_a_model_of_one_column_cannot_do_is_said(classes, folder, tmp_path):
    run, _ = classes
    with pytest.raises(errors.RunError, match=r"kermix fit .* --target kind learns both"):
        kermix("sample", run.folder, "-o", tmp_path / "s.csv")
    with pytest.raises(errors.RunError, match="learned"):
        kermix("impute", run.folder, folder / "new.csv", "-o", tmp_path / "i.csv")
    assert "--target kind" in run.command()
    assert "--set steps=120" in run.command()


@pytest.mark.parametrize("command", ["sample", "impute"])
def test_it_is_said_before_a_file_is_read(command, classes, tmp_path):
    run, _ = classes
    (tmp_path / "broken.csv").write_text('a,b\n1,2\n"3')
    data = [tmp_path / "broken.csv"] if command == "impute" else []
    with pytest.raises(errors.RunError, match="learns both"):
        kermix(command, run.folder, *data, "-o", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_a_target_alone_is_an_option_of_a_fit_of_any_table(tmp_path):
    table = plants(120)
    table.loc[::10, "kind"] = None
    small = {"width": 16, "blocks": 1, "steps": 20, "device": "cpu"}
    run = km.fit(table, out=tmp_path / "run", target="kind", target_share=1, **small)
    data = run.dataset()
    assert (data.frame.rows, data.test.rows) == (88, 20)
    assert "Ignored: 12 rows without a kind." in run.notes(data)
    assert json.loads((run.folder / "result.json").read_text())["rows"] == 20
    assert set(run.predict(table.drop(columns="kind"))) <= {"tall", "low", "odd"}
    again = open_run(run.folder)
    assert again.settings == run.settings
    assert again.settings.out_of_fold
    assert "--target kind" in run.command()
    assert "--set target_share=1" in run.command()
    some = km.fit(table, out=tmp_path / "some", target="kind", target_share=0.5, **small)
    assert some.kind.name == "table"
    assert len(some.sample(3)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_share": 1}, "target_share=1 needs a target"),
        ({"target": "kind", "target_share": 1, "from_disk": True}, "tables in memory .*not from"),
        ({"target": "kind", "out_of_fold": True}, r"out_of_fold=True is for a target alone"),
        ({"target": "place", "target_share": 2}, "target_share=2 must be a number, at least 0"),
    ],
)
def test_options_of_targets_that_do_not_fit_are_refused(options, message, folder, tmp_path):
    with pytest.raises(errors.OptionError, match=message):
        begin_fit(folder / "plants.csv", out=tmp_path / "no", **options)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "settings",
    [{"calibrate": False}, {"calibrate": True}, {"out_of_fold": False}, {"order_share": 0.25},
     {"members": 3, "dropout": 0}, {"learning_rate": 1e-5, "batch_size": 40}],
    ids=str,
)  # fmt: skip
def test_the_command_of_the_report_begins_the_same_run(settings, folder, tmp_path):
    run, _ = begin_fit(
        folder / "plants.csv", out=tmp_path / "first", target="kind", target_share=1, **settings
    )
    begun = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "internals.fit_command_module.train_and_finish", lambda r, _: begun.update(run=r)
        )
        kermix(*shlex.split(run.command())[1:], "--out", tmp_path / "again")
    assert begun["run"].config["settings"] == run.config["settings"]


def test_a_setting_that_does_not_fit_is_refused_by_the_command(folder, tmp_path):
    with pytest.raises(errors.OptionError, match="calibrate='maybe' must be true or false"):
        kermix("classify", folder / "plants.csv", "--target", "kind", "--set", "calibrate=maybe",
               "--out", tmp_path / "run")  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "knd"), "there is no column 'knd' to predict; did you mean kind"),
        ((), "name the column to predict with --target COLUMN"),
        (("--target", "kind", "--patch", "5"), "--patch is only for images"),
        (("--target", "kind", "--set", "rotation=3"), "; rotation is only for images"),
        (("--target", "kind", "--kind", "kind=key"), "kind is a key"),
    ],
)
def test_refused_with_the_reason(folder, arguments, message, tmp_path):
    with pytest.raises(errors.OptionError, match=message):
        kermix("classify", folder / "plants.csv", *arguments, "--out", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_few_rows_and_targets_of_images_are_refused(tmp_path):
    plants(12).to_csv(tmp_path / "few.csv", index=False)
    with pytest.raises(errors.TableError, match="12 rows have a kind, but at least 25"):
        kermix("classify", tmp_path / "few.csv", "--target", "kind")
    with pytest.raises(errors.OptionError, match="for tables, not images"):
        kermix("classify", "digits", "--target", "kind")
