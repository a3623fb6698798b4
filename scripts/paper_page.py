"""Write `docs/paper.md` from `results/paper/`: `python scripts/paper_page.py`.

`kermix reproduce --out results/paper` writes what is read here. `--judge NAME ...` first judges
the numbers of these figures anew, after a rule has changed.

`CONTENTS` is everything that the paper states, in its order: where it is in the code, tested and
judged. A test resolves every name of code and every file of tests.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kermix.paper import artefact as statements
from kermix.paper import prior, remarks, table_records
from kermix.paper.artefact import Claim
from kermix.paper.catalogue import (
    ARTEFACTS,
    by_statement,
    counted_in_words,
    judge_again,
    that_count,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results" / "paper", ROOT / "docs" / "paper.md"
Claims = list[dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """One definition, property, equation, figure, table or claim.

    Attributes:
        item: Its number or place in the paper.
        says: What it says, in short.
        code: Where it is, as names that can be imported.
        tests: Files of tests, under `tests/`.
        statements: Of the claims that judge it; see `kermix.paper.artefact.Claim`.
        found: What was found besides.
        figure: The one whose claims count here; all of them, if none is named.
    """

    item: str
    says: str
    code: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    found: str = ""
    figure: str = ""


CLOSED = "mixtures/test_mixture_closed_forms.py"
SAMPLED = "mixtures/test_sampled_mixture.py"
REFERENCE = "costs/test_costs_reference.py"
LAWS = "costs/test_cost_laws.py"
MIXTURES = "costs/test_mixture_costs.py"
SPECTRUM = "spectrum/test_spectrum.py"
PRODUCT = "networks/test_as_written.py"
ERRATA = "paper/test_errata.py"
CONTENTS = (
    Entry("Introduction", "the model q(X): an integral over a prior, with w(c), m(c), v(c)",
          ("kermix.networks.mixture_networks.ContinuousMixtureNetwork",),
          ("networks/test_continuous.py",), (prior.FITS,), "`kermix fit --model continuous`"),
    Entry("Introduction", "residuals q_k with variances v_k of their own",
          ("kermix.GaussianMixture", "kermix.costs.components.ComponentStatistics"), (MIXTURES,),
          found="every cost takes mixtures in place of points"),
    Entry("Property 1, Eq. 1", "inner product of two Gaussians",
          ("kermix.mixtures.closed_forms.log_normal",), (CLOSED,), found="exact"),
    Entry("Property 2, Eqs. 2, 3", "norm and inner product of mixtures, discrete prior",
          ("kermix.GaussianMixture",), (CLOSED,), found="exact"),
    Entry("Property 3, Eqs. 4, 5", "the same for any prior, as expectations",
          ("kermix.SampledMixture",), (SAMPLED,), (prior.PROPERTY_3,),
          "all pairs are a biased estimate; `unbiased=True` leaves out the diagonal"),
    Entry("Corollary 3.1", "closed form of the L_p norm, any exponent",
          ("kermix.GaussianMixture.lp_norm",), (CLOSED,),
          found="of one Gaussian; of a mixture for positive integers, else `lp_norm_estimate` "
          "with its error: erratum 2"),
    Entry("Introduction", "KICA, HSIC and DCCA as ancestors: the same trace measures dependence",
          ("kermix.dependence",), ("tables/test_dependence.py",),
          found="cited, nothing is claimed of them; `km.dependence` has trace, log-determinant "
          "and HSIC with an exact p-value"),
    Entry("Proposition 4, Eqs. 6, 7", "scalar cost, its bound, tight when q = p",
          ("kermix.scalar_cost", "kermix.ScalarLoss"), (REFERENCE, LAWS), (remarks.BOUNDED,)),
    Entry("Proposition 5, Eq. 8", "vector-matrix cost and its bound",
          ("kermix.vector_cost", "kermix.vector_weights", "kermix.VectorLoss"),
          (REFERENCE, LAWS, MIXTURES), (remarks.BOUNDED,)),
    Entry("Section IV", "the optimal weights of the residuals, R^-1 P, and their error",
          ("kermix.vector_weights",), (REFERENCE, ERRATA),
          found="the error is <p, p> - vc: erratum 14"),
    Entry("Proposition 6", "the Schur complement, whose trace is maximized",
          ("kermix.matrix_cost",), (ERRATA,), found="the trace of what it takes away: mc = N - tr "
          "of the whitened complement; erratum 14"),
    Entry("Proposition 6, Eqs. 9, 10", "matrix-matrix cost: trace, log-determinant, data fixed",
          ("kermix.matrix_cost", "kermix.MatrixLoss"), (REFERENCE, LAWS, MIXTURES),
          (remarks.INTERCHANGEABLE,), "`kermix fit --cost matrix --form ...`"),
    Entry("Proposition 7, Eq. 11", "SVD cost: the nuclear norm of P_FG",
          ("kermix.svd_cost", "kermix.SVDLoss", "kermix.nuclear_norm"),
          (REFERENCE, LAWS, MIXTURES, "linalg/test_nuclear.py", ERRATA),
          found="there are min(N, K) singular values: erratum 15"),
    Entry("Proposition 7", "a small variance is a must", (), (), (remarks.SMALL,)),
    Entry("Proposition 7", "L2 distances are ineffective",
          ("kermix.paper.generation.distance_nuclear_cost",), (REFERENCE,), (statements.L2,)),
    Entry("Proposition 7", "the Frobenius norm is ineffective",
          ("kermix.paper.generation.frobenius_cost",), (REFERENCE,), (statements.FROBENIUS,)),
    Entry("Section III", "noise from a uniform, Gaussian or hybrid prior",
          ("kermix.networks.generators.UniformPrior", "kermix.networks.generators.GaussianPrior",
           "kermix.networks.generators.HybridPrior"),
          ("networks/test_models.py", "images/test_paper_settings.py"),
          found="what hybrid is, is not said: erratum 10"),
    Entry("Eq. 12", "densities of a batch and of a draw", ("kermix.costs.points.PointStatistics",),
          (REFERENCE,), found="what is not said of N and K: erratum 7"),
    Entry("Eq. 13", "norms and inner product from samples", ("kermix.scalar_cost",),
          (REFERENCE, "costs/test_unequal_variances.py")),
    Entry("Eq. 14", "Gram matrices, distances divided by the dimension",
          ("kermix.gram", "kermix.GaussianKernel"), ("kernels/test_gram.py",),
          found="P_FG is N x K here, K x N in Eq. 9: erratum 15"),
    Entry("Section III", "P of the vector cost by summing rows of P_FG", ("kermix.vector_cost",),
          (REFERENCE, ERRATA), found="by their mean: erratum 16"),
    Entry("Section III", "the Gaussian's constant can be ignored", ("kermix.vector_cost",),
          (ERRATA,), found="for equal variances: erratum 17"),
    Entry("Section III", "the division is crucial in high dimensions", ("kermix.GaussianKernel",),
          ("kernels/test_gram.py",), (remarks.DIVISION,)),
    Entry("Section III", "three costs perform similarly, the SVD cost outperforms them", (), (),
          (statements.SIMILAR, statements.BEST)),
    Entry("Section IV", "all costs are bounded by the norm of p", ("kermix.matrix_cost",),
          (LAWS,), (remarks.BOUNDED, statements.MATRIX_BOUND), "errata 1 and 8"),
    Entry("Section IV", "the nuclear norm is at most N * N(0), when samples match",
          ("kermix.svd_cost",), (LAWS,), (remarks.TRACE,), "without N in Eq. 19: erratum 13"),
    Entry("Section IV", "the solution X_n = X'_n is not the only one", ("kermix.svd_cost",),
          (ERRATA,), found="any order of the samples; the density is unique"),
    Entry("Property 8, Eqs. 15, 16", "decompositions under dX and under p and q, for any kernel",
          ("kermix.decompose", "kermix.decompose_grid", "kermix.LaplaceKernel"),
          (SPECTRUM, "kernels/test_others.py"), (statements.SAMPLES_SVD,)),
    Entry("Eqs. 17, 18", "their discrete form", ("kermix.decompose_discrete",
          "kermix.discrete_cost"),
          ("costs/test_kernel_costs.py", "spectrum/test_spectrum_mixtures.py", ERRATA),
          found="the functions are the columns of U: erratum 18"),
    Entry("Eq. 19", "bound of the nuclear norm, tight when q = p", ("kermix.svd_cost",), (LAWS,),
          (statements.NUCLEAR_BOUND,), "errata 13 and 19"),
    Entry("Section IV", "the identity as kernel gives a Hellinger distance",
          ("kermix.discrete_cost",), ("costs/test_kernel_costs.py", SPECTRUM),
          found="the Bhattacharyya coefficient; see [Mathematics](mathematics.md)"),
    Entry("Section IV", "a smoother is a must for continuous densities", ("kermix.decompose",),
          (SPECTRUM, ERRATA), found="for the identity as kernel nothing overlaps: P = 0"),
    Entry("Eq. 20", "for q = p, eigenvectors are left singular vectors of C",
          ("kermix.decompose",), (SPECTRUM,), (statements.ROOT_VECTORS,)),
    Entry("Section IV", "C is the root of the joint density p N(.; 2v)", (), (),
          (remarks.ROOT,), "of p N(.; v/2): erratum 9"),
    Entry("Eqs. 21, 22", "the identity function, decomposed by the Gaussians",
          ("kermix.spectrum.Decomposition.identity",), (SPECTRUM,),
          (statements.IDENTITY, remarks.BEST_PLAIN), "errata 3 and 12"),
    Entry("Section IV", "the same for the vector-matrix cost", (), (), (remarks.VECTOR_FORM,)),
    Entry("Property 9, Eq. 23", "whitened functions: the best approximators, orthonormal",
          ("kermix.decompose",), (SPECTRUM, ERRATA), (remarks.OPTIMAL,),
          "V g, not V' g: erratum 15"),
    Entry("Property 10, Eq. 24", "product of functions of many variables; its Gaussian form",
          ("kermix.networks.product_rows.GaussianProduct",
           "kermix.networks.product_layers.GaussianOutput"),
          ("networks/test_gaussian_product.py", "networks/test_gaussian_layers.py")),
    Entry("Eqs. 25, 26", "layers of a position: affine map, anchors W(t), BN",
          ("kermix.networks.product_layers.GaussianLayer",
           "kermix.images.classifier_settings.as_written"), (PRODUCT,),
          found="two readings of the norm: erratum 11"),
    Entry("Eq. 27", "positions meet in the last exponential",
          ("kermix.networks.product_layers.GaussianOutput",
           "kermix.networks.product_images.GaussianProductClassifier"), (PRODUCT,)),
    Entry("Figure 1", "samples of networks trained with each cost, in the authors' setting",
          ("kermix.paper.toy.run",), ("paper/test_reproduce.py", "paper/test_toy.py"),
          (statements.NO_DIFFICULTIES, statements.BEST, statements.SIMILAR), figure="fig-toy"),
    Entry("Figure 1", "the same, on narrow modes far apart", ("kermix.paper.generation.run",),
          ("paper/test_reproduce.py",),
          (statements.NO_DIFFICULTIES, statements.BEST, statements.SIMILAR),
          "the network and the steps are ours: erratum 6", "fig-generation"),
    Entry("Section VI", "toy 2D datasets: ten-state mixture, two moons",
          ("kermix.data.dataset.toy",), ("data/test_toys.py",), found="`kermix fit mixture10`, "
          "`kermix fit moons`"),
    Entry("Section VI", "images such as MNIST and CelebA", ("kermix.paper.images.run",),
          ("paper/test_paper_images.py", "images/test_image_fit.py"),
          (statements.NO_DIFFICULTIES, statements.BEST), "MNIST was run; CelebA was not, for want "
          "of a copy: `kermix reproduce fig-images --data-root DATA` runs it on its files, in the "
          "layout that tests write; the AT&T faces beside do not count; [Images](images.md)",
          "fig-images"),
    Entry("Figure 2", "costs while q shifts away from p", ("kermix.paper.measure.run",),
          ("paper/test_paper_claims.py",),
          (statements.CLOSER, statements.ACCURATE, statements.NOT_SYMMETRICAL,
           statements.SATURATES)),
    Entry("Figure 3", "the identity, approximated", ("kermix.paper.identity.run",),
          ("paper/test_paper_claims.py",),
          (statements.IDENTITY, statements.DIAGONAL_GOES, statements.LESS_ACCURATE), "erratum 4"),
    Entry("Figure 4", "singular functions and eigenfunctions",
          ("kermix.paper.singular_functions.run",), ("paper/test_paper_claims.py",),
          (statements.CONSISTENT,), "erratum 5"),
    Entry("Table 1", "accuracies by patch size, and of a CNN",
          ("kermix.paper.classification.run",),
          ("paper/test_table1.py", "paper/test_paper_claims.py"),
          (table_records.PIXELS, table_records.RISE, table_records.TEST, table_records.TRAIN,
           table_records.CNN, table_records.GAP), "[Classification](classification.md)",
          "table-classification"),
    Entry("Table 1", "the same with Eqs. 25 to 27 to the letter", ("kermix.paper.as_written.run",),
          ("networks/test_as_written.py", "paper/test_paper_claims.py"),
          (table_records.PIXELS, table_records.RISE, table_records.TEST, table_records.TRAIN),
          "both readings of the norm, no augmentation, no whitening", "table-as-written"),
)  # fmt: skip


def page() -> str:
    """The page's Markdown: what the paper states, then its figures with claims and verdicts."""
    files = [file for name in ARTEFACTS if (file := RESULTS / f"{name}.json").exists()]
    records = [json.loads(file.read_text()) for file in files]
    claims = [
        {**Claim.from_json(claim).as_json(), "figure": record["paper"]}
        for record in records for claim in record["claims"]
    ]  # fmt: skip
    lines = [
        "# The paper",
        "",
        "Written by `python scripts/paper_page.py` from the files in `results/paper/`, which"
        " `kermix reproduce` wrote. Each claim is decided from the numbers by the rule next to it;"
        " claims that the published paper does not make are marked as ours and do not count. What"
        " depends on seeds is judged by 95 % intervals over them (Student's t, in parentheses),"
        " costs by paired differences: **yes** and **no** where the whole interval says so, a"
        " **tie** otherwise. Readings by which real data lose against samples, and comparisons of"
        " trainings that collapsed, are not counted. Where no seeds are named, nothing is random"
        " but the sample at hand, which was drawn once.",
        "",
        "The authors' notebooks, [bohu615/kernelized-matrix-cost]"
        "(https://github.com/bohu615/kernelized-matrix-cost), gave the data and the networks of"
        " Figure 1.",
        "",
        *_counts(claims),
        "## Everything that the paper states",
        "",
        "In the order of the paper. A statement with several readings or cases shows how many of"
        " them were confirmed. Errata are on the page [Mathematics]"
        "(mathematics.md#errata-where-the-paper-is-wrong-or-silent).",
        "",
        "| where | what | code | tests | found |",
        "|---|---|---|---|---|",
        *(_row(entry, claims) for entry in CONTENTS),
        "",
    ]
    for file, record in zip(files, records, strict=True):
        lines += _figure(file.stem, record)
    return "\n".join(lines)


def _counts(claims: Claims) -> list[str]:
    found, cases = counted_in_words(claims)
    return [f"**{found}** ({cases}).", ""]


def _row(entry: Entry, claims: Claims) -> str:
    groups = by_statement([c for c in claims if entry.figure in ("", c["figure"])])
    judged = []
    for statement in entry.statements:
        every = groups.get(statement, [])
        group = that_count(every)
        seen = sum(claim["holds"] for claim in group)
        ties = sum(claim["state"] == "tie" for claim in group)
        if not group:
            judged.append("not counted" if every else "not judged yet")
        elif len(group) == 1:
            judged.append("confirmed" if seen else "a tie" if ties else "**not confirmed**")
        else:
            bold = "" if seen or ties else "**"
            even = f", {ties} tie{'s' if ties > 1 else ''}" if ties else ""
            judged.append(f"{bold}confirmed in {seen} of {len(group)}{bold}{even}")
        if len(entry.statements) > 1:
            judged[-1] = f"{statement.rstrip('.')}: {judged[-1]}"
    found = "; ".join([*judged, *([entry.found] if entry.found else [])]) or "as stated"
    code = ", ".join(f"`{name.removeprefix('kermix.')}`" for name in entry.code) or "-"
    tests = ", ".join(f"`{name}`" for name in entry.tests) or "judged alone"
    return f"| {entry.item} | {_plain(entry.says)} | {code} | {tests} | {_plain(found)} |"


def _figure(name: str, record: dict[str, Any]) -> list[str]:
    machine = record["machine"]
    settings = record["settings"]
    where = ", ".join(settings.get("trained on", ())) or machine["gpu"]
    where = where or f"{machine['cores']} cores of {machine['cpu']}"
    commits = settings.get("trained at commit", [record["commit"]])
    size = "quick version, " if record["quick"] else ""
    rows = []
    for claim in (Claim.from_json(claim).as_json() for claim in record["claims"]):
        seen = {"tie": "tie", "not counted": "not counted"}.get(
            claim["state"], "yes" if claim["holds"] else "**no**"
        )
        text = ("Ours: " if claim["ours"] else "") + claim["text"]
        numbers = Claim.from_json(claim).evidence
        cells = (seen, *(_plain(cell) for cell in (text, claim["rule"], numbers)))
        rows.append("| " + " | ".join(cells) + " |")
    return [
        f"## {record['title']}",
        "",
        f"![{record['title']}](../results/paper/{name}.png)",
        "",
        f"*{_plain(record['caption'])}*",
        "",
        "| confirmed | claim | rule | numbers |",
        "|---|---|---|---|",
        *rows,
        "",
        *(line for note in record["notes"] for line in (_plain(note), "")),
        f"{size}{where}, commit {', '.join(f'`{commit}`' for commit in commits)},"
        f" [{name}.json](../results/paper/{name}.json).",
        "",
    ]


def _plain(text: str) -> str:
    """Text in which nothing is taken for a tag or the edge of a cell."""
    return text.replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    for name in sys.argv[2:] if sys.argv[1:2] == ["--judge"] else []:
        judge_again(name, RESULTS)
    PAGE.write_text(page())
    print(PAGE)
