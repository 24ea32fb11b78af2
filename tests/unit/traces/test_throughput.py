"""Throughput tables: readers, and the shipped families against the tables they come from."""

import gzip
import json
import math

import numpy as np
import polars as pl
import pytest

from shadowprice.core.errors import InputError
from shadowprice.traces.locate import read_trace
from shadowprice.traces.throughput import (
    family_table,
    pollux_curve,
    rate_at,
    read_chronus,
    read_elasticflow,
    read_gavel,
    read_pollux_placements,
)


def test_elasticflow_blank_nan_and_zero_are_infeasible(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("global_batch_size,1,2,4,8,16\n64,0.5,,nan,0,0.25\n128,1,2,3,4,5\n")
    curves = read_elasticflow(path)
    assert curves == {64: {1: 0.5, 16: 0.25}, 128: {1: 1, 2: 2, 4: 3, 8: 4, 16: 5}}
    path.write_text("global_batch_size,1\n64,-1\n")
    with pytest.raises(InputError, match=r"line 2: 1 -1\.0 is a negative rate"):
        read_elasticflow(path)


def test_gavel_keys_are_tuples_in_text_and_zero_did_not_fit(tmp_path):
    path = tmp_path / "g.json.gz"
    data = {
        "v100": {
            "('LM (batch size 5)', 1)": {"null": 10.0, "('A3C', 1)": [1.0, 2.0]},
            "('LM (batch size 5)', 2)": {"null": 0.0},
            "('A3C', 4)": {"null": 7.0},
        }
    }
    with gzip.open(path, "wt") as file:
        json.dump(data, file)
    assert read_gavel(path) == {("LM", 5): {1: 10.0}, ("A3C", None): {4: 7.0}}
    with pytest.raises(InputError, match="has no GPU 'k80'"):
        read_gavel(path, "k80")
    with pytest.raises(InputError, match="has no GPU 'v100_unconsolidated'"):
        read_gavel(path, consolidated=False)
    path.write_text('{"v100": {"__import__(1)": {"null": 1}}}')
    with pytest.raises(InputError, match=r"expected \(job type, GPUs\)"):
        read_gavel(path)


def test_pollux_placements_are_digits_not_numbers(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text(
        "placement,local_bsz,step_time,sync_time\n"
        "112,4,2.0,0.1\n4,4,1.0,0.1\n13,4,0.5,0.1\n1,4,0.25,0.1\n1,8,9,0.1\n"
    )
    frame = read_pollux_placements(path)
    assert frame["nodes"].to_list() == [3, 1, 2, 1, 1]
    assert frame["replicas"].to_list() == [4, 4, 4, 1, 1]
    assert frame["batch_size"].to_list() == [16, 16, 16, 4, 8]
    # Four replicas: the placement on one node, not the faster one on two.
    assert pollux_curve(frame, 4) == {1: 4.0, 4: 4.0}


def test_chronus_leaves_out_the_warm_up(tmp_path):
    np.save(tmp_path / "x_gpu_2.npy", np.array([100.0] * 50 + [0.5] * 450))
    np.save(tmp_path / "x_gpu_1.npy", np.ones(500))
    assert read_chronus(tmp_path, "x") == {1: 1.0, 2: 2.0}
    with pytest.raises(InputError, match=r"has no y_gpu"):
        read_chronus(tmp_path, "y")
    (tmp_path / "z_gpu_1.npy").write_bytes(b"junk")
    with pytest.raises(InputError, match="is not an array of seconds"):
        read_chronus(tmp_path, "z")


def test_curves_are_interpolated_but_never_extrapolated():
    curve = {2: 10.0, 4: 14.0, 8: 12.0}
    assert rate_at(curve, 4) == 14.0
    assert rate_at(curve, 3) == 12.0
    assert rate_at(curve, 6) == 13.0
    assert rate_at(curve, 1) is None
    assert rate_at(curve, 9) is None


def test_families_are_complete():
    table = family_table()
    names = [(family.set, family.name) for family in table.families]
    assert len(set(names)) == len(names) == 40
    for family in table.families:
        assert family.gradient > 0
        assert 1 in family.curve
        assert all(rate > 0 for rate in family.curve.values())
    assert ("resnet50", 64) in table.by_model
    assert ("resnet50", 65) not in table.by_model


@pytest.mark.traces
def test_shipped_families_are_the_measured_ones(traces):
    table = family_table()
    seen = 0
    for model in ("bert", "gpt2", "resnet50", "vgg16"):
        path = traces / "throughput" / "elasticflow_A100" / f"{model}.csv"
        for batch, curve in read_elasticflow(path).items():
            family = table.by_model.get((model, batch))
            assert family is not None
            assert family.set == "a100"
            assert family.curve == pytest.approx(curve, rel=5e-6)
            seen += 1
    measured = read_gavel(traces / "throughput" / "gavel" / "simulation_throughputs.json.gz")
    for (model, batch), curve in measured.items():
        family = table.by_model.get((model, batch))
        assert family is not None
        assert family.set == "v100"
        assert family.curve == pytest.approx(curve, rel=5e-6)
        seen += 1
    assert seen == len(table.families) - 4  # deepspeech2 and inception3, below


@pytest.mark.traces
def test_recovered_families_explain_every_iteration_count(traces):
    """num_iteration = floor(rate x duration) for every job, which pins the rates."""
    frames = [
        read_trace(f"itp:{path}").jobs
        for path in sorted((traces / "microsoft_itp_2021" / "elasticflow").iterdir())
    ]
    jobs = pl.concat(frames)
    table = family_table()
    groups = jobs.group_by("model", "batch_size", "gpus").agg(
        low=(pl.col("iterations") / pl.col("duration")).max(),
        high=((pl.col("iterations") + 1) / pl.col("duration")).min(),
    )
    for row in groups.iter_rows(named=True):
        family = table.by_model.get((row["model"], row["batch_size"]))
        assert family is not None
        rate = family.curve[int(row["gpus"])]
        # To the six digits that are shipped.
        assert row["low"] * (1 - 5e-6) <= rate <= row["high"] * (1 + 5e-6)


@pytest.mark.traces
def test_gradients_are_at_least_the_large_tensors(traces):
    tensors = json.loads((traces / "tiresias" / "model_tensors_mib.json").read_text())
    table = family_table()
    for model, batch in (("vgg16", 64), ("resnet50", 64), ("inception3", 64)):
        family = table.by_model.get((model, batch))
        assert family is not None
        large = tensors[model]["sum_mib"] * 2**20
        assert large <= family.gradient < 1.7 * large


@pytest.mark.traces
def test_other_tables_are_read(traces):
    folder = traces / "throughput"
    yolo = read_elasticflow(folder / "elasticflow_T4" / "yolov3.csv")
    assert sorted(yolo[64]) == [1, 2, 4, 8, 16]
    frame = read_pollux_placements(folder / "pollux_T4" / "bert" / "placements.csv")
    assert frame.filter(placement="11")["replicas"].unique().to_list() == [2]
    curve = pollux_curve(frame, 4)
    assert math.isclose(curve[1], 1 / 0.45532354712486267)
    chronus = read_chronus(folder / "chronus" / "stats", "imagenet_arch_resnet50")
    assert list(chronus) == [1, 2, 4, 8, 16]
    assert all(0.5 < rate < 1000 for rate in chronus.values())
    kept_apart = read_gavel(
        folder / "gavel" / "physical_cluster_throughputs.json.gz", "p100", consolidated=False
    )
    assert kept_apart
