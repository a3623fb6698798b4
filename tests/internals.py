"""The one door through which tests reach what is not public. It shall get smaller.

`from internals import name` finds the name by the imports below, and imports its module only then;
no program but a linter runs them. A module itself ends in `_module`; a name that several modules
have begins with that of its module.
"""

# ruff: noqa: F401

import ast
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import kermix.checks as checks_module
    import kermix.cli.classify_command as classify_command_module
    import kermix.cli.fit_command as fit_command_module
    import kermix.cli.options as options_module
    import kermix.costs.formulas as formulas_module
    import kermix.costs.functions as functions_module
    import kermix.data.images.image_cache as image_cache_module
    import kermix.data.images.labelled as labelled_module
    import kermix.data.readers.common as common_module
    import kermix.data.readers.delimited as delimited_module
    import kermix.data.readers.formats as formats_module
    import kermix.data.readers.parts as parts_module
    import kermix.data.writing as writing_module
    import kermix.distributed.processes as launch_module
    import kermix.estimators.product as product_module
    import kermix.evaluation.diversity as diversity_module
    import kermix.evaluation.sample_distances as sample_distances_module
    import kermix.explore.query_service as query_service_module
    import kermix.explore.watch as watch_module
    import kermix.graphs as graphs_module
    import kermix.images.classifier_run as classifier_run_module
    import kermix.images.classifier_settings as classifier_settings_module
    import kermix.images.classifier_training as classifier_training_module
    import kermix.images.generator_run as generator_run_module
    import kermix.images.generator_training as generator_training_module
    import kermix.kernels.gram as gram_module
    import kermix.kernels.gram_triton as gram_triton_module
    import kermix.kernels.means as means_module
    import kermix.kernels.means_triton as means_triton_module
    import kermix.linalg.polar as polar_module
    import kermix.linalg.range_finder as range_finder_module
    import kermix.mixtures.closed_forms as closed_forms_module
    import kermix.networks.product_layers as product_layers_module
    import kermix.networks.scaled as scaled_module
    import kermix.paper.artefact as artefact_module
    import kermix.paper.as_written as as_written_module
    import kermix.paper.classification as classification_module
    import kermix.paper.generation as generation_module
    import kermix.paper.identity as identity_module
    import kermix.paper.image_cells as image_cells_module
    import kermix.paper.images as images_module
    import kermix.paper.measure as measure_module
    import kermix.paper.prior as prior_module
    import kermix.paper.remarks as remarks_module
    import kermix.paper.singular_functions as singular_functions_module
    import kermix.paper.table_records as table_records_module
    import kermix.paper.toy as toy_module
    import kermix.runs.folder as folder_module
    import kermix.runs.train as train_module
    import kermix.sketches.accumulation as accumulation_module
    import kermix.tables.compare.cost_details as cost_details_module
    import kermix.tables.drift.period_drift as period_drift_module
    import kermix.tables.drift.periods as periods_module
    import kermix.tables.evaluate.copies as copies_module
    import kermix.tables.model.sampling as sampling_module
    import kermix.tables.model.table_training as table_training_module
    import kermix.tables.model.training_rows as training_rows_module
    import kermix.tables.runs.table_mixture as table_mixture_module
    import kermix.tables.runs.table_run as table_run_module
    import kermix.tables.runs.training_data as training_data_module
    import kermix.tables.sketch_files as sketch_files_module
    import kermix.tables.sketch_sampling as sketch_sampling_module
    import kermix.training.loop as loop_module
    import kermix.two_sample.error_bars as error_bars_module
    from kermix.checks import check_sizes
    from kermix.cli import SPINS, WAITING, main, spin_briefly
    from kermix.cli.app import COMMANDS, app, function_of
    from kermix.cli.fit_command import fit
    from kermix.cli.options import set_options, value_typed
    from kermix.cli.output import plain, print_json, split_names
    from kermix.cli.short_help import first_sentence
    from kermix.costs.baselines import energy_distance, mmd_squared, mode_coverage, wasserstein2
    from kermix.costs.functions import graphed
    from kermix.costs.moments import MomentStatistics
    from kermix.costs.points import Numerics, PointStatistics
    from kermix.data.dataset import TOYS, toy
    from kermix.data.images.image_cache import Decoded, Plan, cache_folder, prepared
    from kermix.data.images.image_sets import CLASSES, is_idx, read_celeba
    from kermix.data.images.labelled import LabelledImages, load_labelled
    from kermix.data.images.pictures import (
        Form,
        decode,
        decode_all,
        is_picture,
        prepare_files,
        probe,
    )
    from kermix.data.loading import (
        BUILT_IN,
        load,
        read_idx,
        read_image_folder,
        stacked_mnist,
    )
    from kermix.data.readers.common import (
        GAPS,
        PACKED,
        READABLE,
        WRITABLE,
        CsvForm,
        Reading,
        number_text,
    )
    from kermix.data.readers.dialect import look_at_csv, truth_words
    from kermix.data.readers.frames import as_frame
    from kermix.data.readers.number_forms import NumberForm, look_at_numbers
    from kermix.data.readers.parts import open_files
    from kermix.data.readers.reading import read_alike, read_frame
    from kermix.data.schema.alignment import with_same_times
    from kermix.data.schema.columns import (
        CategoryColumn,
        NumberColumn,
        as_floats,
        from_floats,
        origin_of,
    )
    from kermix.data.schema.monotone import MonotoneMap
    from kermix.data.schema.times import text_format
    from kermix.data.schema.unmodelled import LeftOutColumn
    from kermix.data.sources import (
        MixedRows,
        common_columns,
        read_sources,
        read_table,
    )
    from kermix.data.writing import csv_lines, filled_text, spreadsheet_safe, table_writer
    from kermix.distributed.loss import DistributedLoss
    from kermix.distributed.processes import Ranks, launch, make_fabric, shares, slice_of
    from kermix.distributed.sharded import RankStatistics, kernel_sets
    from kermix.estimators.product import hold_out_rare
    from kermix.evaluation.sample_distances import (
        frechet_distance,
        kernel_distance,
        neighbor_scores,
        neighbor_values,
    )
    from kermix.evaluation.sample_distances import nearest as neighbors_nearest
    from kermix.evaluation.spectra import EXACT_UP_TO as spectra_EXACT_UP_TO
    from kermix.evaluation.spectra import Spectrum, number_interval
    from kermix.explore.query_service import QueryService, texts
    from kermix.explore.server import Address, Server, application, free_socket, server_of
    from kermix.explore.session import Explored, explorable, outliers
    from kermix.explore.watch import checked
    from kermix.files import (
        read_checksummed,
        whole_file,
        write_array,
        write_checksummed,
        write_json,
    )
    from kermix.fitting import open_run
    from kermix.fitting.fit import begin_fit
    from kermix.fitting.samples_run import begin_samples
    from kermix.graphs import ReplayedCalls, unchanged
    from kermix.images.augmentation import Augmentation, augmentation
    from kermix.images.classifier_run import begin_classifier, classifier
    from kermix.images.classifier_settings import as_written, preset, suited_settings
    from kermix.images.classifier_training import (
        ClassifierTask,
        Muon,
        build_classifier,
        load_classifier,
        orthogonal_factor,
    )
    from kermix.images.generator_run import begin_images
    from kermix.images.generator_training import (
        ImageRows,
        ImageTask,
        build_image_model,
        cached_backward,
    )
    from kermix.images.image_quality import (
        JudgeTask,
        accuracy,
        class_balance,
        fit_classifier,
        neighbourhoods,
        parzen,
        stacked_modes,
        train_on_synthetic,
    )
    from kermix.images.image_quality import nearest as image_quality_nearest
    from kermix.images.spaces import SPACES, Pooled, RandomFeatures, make_space
    from kermix.kernels.distances import (
        Layout,
        attraction,
        mismatch_of,
        squared_distances,
    )
    from kermix.kernels.gaussian import (
        MixedKernel,
        as_kernel,
        mixed_kernel,
        variance_grid,
    )
    from kermix.kernels.gram import ScaledGram, scaled_gram
    from kermix.kernels.means import log_kernel_means
    from kermix.kernels.others import PointKernel, as_point_kernel
    from kermix.kernels.subsets import (
        distinct_rows,
        recognized,
        row_keys,
        symmetric_subset,
    )
    from kermix.linalg.cholesky import cholesky, leading_svd, ridged_factor, shrunk
    from kermix.linalg.nuclear import chosen_method
    from kermix.linalg.polar import (
        ROUNDING_BESIDE_PROBES,
        Products,
        binary_unit,
        polar_factor,
        probing_signs,
    )
    from kermix.mixtures.mixture import InnerProducts, conditional_mixture, marginal_log_prob
    from kermix.networks.generators import (
        ConvDecoder,
        GaussianPrior,
        HybridPrior,
        MLPGenerator,
        UniformPrior,
        make_prior,
    )
    from kermix.networks.image_networks import Autoencoder, PlainCNN, doublings_of, mlp_classifier
    from kermix.networks.mixture_networks import (
        ConditionalMixtureNetwork,
        ContinuousMixtureNetwork,
        MixtureNetwork,
        MixtureTable,
        ProductMixture,
        stratified_draw,
        widened,
    )
    from kermix.networks.product_binned import (
        ColumnBins,
        Grid,
        binned_exponents,
        binned_values,
        fit_inverse_temperature,
        set_binned_statistics,
        set_row_statistics,
        shrink_to_rates,
    )
    from kermix.networks.product_images import (
        GaussianProductClassifier,
        ProductDesign,
        image_patches,
        whitening_map,
    )
    from kermix.networks.product_layers import (
        GaussianLayer,
        GaussianOutput,
        gaussian,
        gaussian_norm,
        gaussian_sums,
        mean_square,
    )
    from kermix.networks.product_rows import FORMS, BoundedNorm, GaussianProduct
    from kermix.networks.scaled import ScaledModel, Scaler, column_moments, evaluating
    from kermix.pages.charts import Bins
    from kermix.pages.page import Page, Repeat, render
    from kermix.pages.plot import Axis, Plot
    from kermix.pages.sheets import save_png, sheet
    from kermix.paper.artefact import Claim, read_record
    from kermix.paper.catalogue import ARTEFACTS, chosen, judge_again, records_in, write_page
    from kermix.paper.generation import METHODS, GenerationTraining, SampleTask
    from kermix.paper.generation import train as generation_train
    from kermix.paper.image_cells import COSTS as image_cells_COSTS
    from kermix.paper.image_cells import CellTraining, cell_file, read_pictures, sets_in, shown_in
    from kermix.runs.folder import (
        begin_folder,
        is_held,
        lasting_source,
        locked_run,
        next_free_folder,
        write_metrics,
    )
    from kermix.runs.run import Draw, Run, Start, equivalent_command
    from kermix.runs.train import Stopped, progress_bar
    from kermix.runs.train import complete as train_complete
    from kermix.runs.train import train as train_train
    from kermix.settings import value_of
    from kermix.sketches.accumulation import (
        NystromSums,
        feature_sums,
        sample_moments,
    )
    from kermix.sketches.features import (
        ColumnScale,
        NystromFeatures,
        fingerprint,
        random_pivots,
    )
    from kermix.sketches.kernel_features import EXACT_UP_TO, PrincipalFeatures, principal_features
    from kermix.spectrum import unit_gaussians
    from kermix.tables.compare.coincidence import chance_of_equal_rows
    from kermix.tables.compare.column_changes import (
        ColumnValues,
        ComparedRows,
        change_of,
        difference_of,
        new_and_gone,
    )
    from kermix.tables.compare.column_charts import column_chart, pair_chart
    from kermix.tables.compare.compare import DetailsTask
    from kermix.tables.compare.comparison_page import comparison_report, typical_rows
    from kermix.tables.compare.cost_details import MatrixStatistics
    from kermix.tables.compare.result import TITLES
    from kermix.tables.compare.sketch_comparison import drift
    from kermix.tables.drift.drift_page import period_report
    from kermix.tables.drift.period_drift import PeriodDrift, PeriodVerdict, between, holm
    from kermix.tables.drift.periods import order_of_names, read_periods
    from kermix.tables.drift.run_length import Memories, _mean_run_length, _threshold
    from kermix.tables.drift.run_length import combined as run_length_combined
    from kermix.tables.evaluate.copies import memorizing
    from kermix.tables.evaluate.evaluation_page import evaluation_report
    from kermix.tables.evaluate.evaluation_result import answer_of
    from kermix.tables.evaluate.judged_data import PartedPair, euclidean
    from kermix.tables.evaluate.scores import number_of, sdmetrics_scores, table_scores
    from kermix.tables.model.calibration import (
        OutOfFold,
        calibrate,
        for_all_members,
    )
    from kermix.tables.model.conditioning import given_cell
    from kermix.tables.model.distribution import ColumnDistribution
    from kermix.tables.model.equal_columns import (
        Link,
        find_equal_columns,
        find_links,
        implied,
        link_codes,
        link_notes,
        linked,
        with_equal_columns,
    )
    from kermix.tables.model.exact_relations import ExactRelations
    from kermix.tables.model.layout import (
        REGRESSORS,
        TableLayout,
        regressor_places,
    )
    from kermix.tables.model.layout_search import find_regressors
    from kermix.tables.model.linear_relations import (
        FINEST,
        RIDGE,
        WIDEST,
        StraightLines,
        find_lines,
        lines_of,
        lines_of_all,
    )
    from kermix.tables.model.network import ColumnParts, TableNetwork
    from kermix.tables.model.relation_search import find_relations
    from kermix.tables.model.relations import RawColumns, Relation
    from kermix.tables.model.repeated_values import RepeatedValues
    from kermix.tables.model.sampling import chain_log_density, draw_cells, orders_of
    from kermix.tables.model.sampling import complete as sampling_complete
    from kermix.tables.model.table_settings import TableModelSettings
    from kermix.tables.model.table_training import (
        MaskBatch,
        TableModelTask,
        ordered_questions,
        random_questions,
    )
    from kermix.tables.model.training_rows import (
        OtherRows,
        RowStore,
        TableRows,
        closest_distances,
        copies,
        table_split,
    )
    from kermix.tables.model.training_rows import split_rows as training_rows_split_rows
    from kermix.tables.runs.run_pages import conditional_cards
    from kermix.tables.runs.table_fit import TABLE_SETTINGS, has_densities, why_table_model
    from kermix.tables.runs.table_mixture import TableMixture
    from kermix.tables.runs.table_quality import (
        conditionals_of,
        grouped,
        judge_samples,
        strongest_pairs,
    )
    from kermix.tables.runs.table_run import drawn_parts, model_so_far, schema_of
    from kermix.tables.runs.target_fit import split_for_target
    from kermix.tables.runs.training_data import (
        TableData,
        form_of,
        look_at_large,
        scan,
    )
    from kermix.tables.sketch_sampling import typed_sample
    from kermix.training.budget import Course, in_words, seconds_of
    from kermix.training.checkpoints import RunningAverage, load_checkpoint, save_checkpoint
    from kermix.training.conditional import (
        ConditionalTask,
        fit_conditional,
        load_conditional,
        spherical_loss,
    )
    from kermix.training.fit_settings import IMAGES, ROWS, FitSettings
    from kermix.training.loop import Task, Trainer, learning_rate
    from kermix.training.mixture_em import (
        KINDS,
        PASSES,
        EMRows,
        EMRowsWithGaps,
        em,
        em_pass,
        kmeans_start,
        product_em_pass,
    )
    from kermix.training.mixture_search import (
        MixtureColumnScale,
        choose_mixture,
        clearly_better,
        gaussian_log_densities,
    )
    from kermix.training.objective import (
        Objective,
        VarianceSchedule,
        automatic_variance,
        cauchy_schwarz_to_points,
        sample_loss,
    )
    from kermix.training.product_settings import NO_AUGMENTATION, ProductSettings
    from kermix.training.product_training import TableTask, fit_table
    from kermix.training.samples_task import RowTask, Split, build_model, build_trainer
    from kermix.training.samples_task import split_rows as build_split_rows
    from kermix.two_sample.aggregate import aggregate_rows, shares_of_parts
    from kermix.two_sample.classifier_test import area_text, auc, auc_text, tell_apart
    from kermix.two_sample.column_scores import (
        FEWEST_ROWS,
        ColumnPlace,
        ColumnScores,
        ColumnsScores,
        ColumnStatistics,
        MiddleRanks,
        PairScores,
        _in_own_margins,
        legendre,
        nested_sums,
        pairs_to_look_at,
        places_of_names,
    )
    from kermix.two_sample.cost_statistics import (
        COST_RIDGE,
        TILE,
        CostStatistics,
        EnergyStatistic,
        WeightedMoments,
        bures_form,
        line_energy,
    )
    from kermix.two_sample.cost_test import COSTS as cost_test_COSTS
    from kermix.two_sample.cost_test import cost_tests
    from kermix.two_sample.error_bars import (
        groups,
        halves,
        jackknife_error,
        mean_measures,
        standard_error,
    )
    from kermix.two_sample.mean_test import mean_test
    from kermix.two_sample.permutation import (
        Blocks,
        ExchangeableUnits,
        StatisticValues,
        cauchy_combination,
        corrected_pvalues,
        evidence,
        labelings,
        mean_evidence,
        own_generator,
        permutation_test,
        pvalues,
        random_labelings,
        ranked_rows,
        round_to_significant,
        smallest_pvalue,
        tied,
    )
    from kermix.two_sample.row_statistics import DepthStatistics, KernelFamilyStatistics, Kernels


@functools.cache
def _places():
    """For each name, its module, and its name there unless it is the module."""
    found = {}
    for node in ast.walk(ast.parse(Path(__file__).read_text())):
        if isinstance(node, ast.Import):
            found |= {a.asname: (a.name, None) for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: (node.module, a.name) for a in node.names}
    return found


def __getattr__(name):
    if name.startswith("__") or name not in _places():
        raise AttributeError(f"tests/internals.py has no {name}")
    module, inner = _places()[name]
    home = importlib.import_module(module)
    return home if inner is None else getattr(home, inner)
