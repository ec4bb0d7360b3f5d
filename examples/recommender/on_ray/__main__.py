"""Starts three machines, trains on them with Ray Train, cuts the power of one, and draws what happened."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console

import ps_service.ray
from examples.plan import Plan
from examples.raylets import OWNER, Machines
from examples.recommender.on_ray import trainer
from examples.recommender.on_ray.report import Report, draw
from examples.recommender.on_ray.trainer import CLUSTER, NOTES, Notes
from examples.recommender.on_ray.watcher import Watcher
from examples.recommender.settings import DEMO_STEPS, Settings
from trainer_client import PsError

ROOT: Final = Path(__file__).resolve().parents[3]
TAKES: Final = "three to five minutes"
TRAINER: Final = {"role": "trainer"}


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code."""
    settings, compiles = _parse(arguments)
    plan = Plan(TAKES, (settings.steps or DEMO_STEPS) < DEMO_STEPS, settings.out)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"2 owners and 2 trainers on three machines, {settings.steps} steps; {plan}")
    # Ray's workers find this repository, and do not run behind all other programs.
    os.environ |= {"PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
    try:
        with Machines() as machines, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as shared:
            report = _train(settings, machines, Path(shared), compiles)
    except (PsError, TimeoutError, ray.exceptions.RayError) as error:
        console.print(str(error), style="red")
        return 1
    plan.folder.mkdir(parents=True, exist_ok=True)
    report.write(plan.folder / "recommender-on-ray.json")
    draw(report, plan.folder / "recommender-on-ray.png")
    _summary(report, plan.folder, console)
    return 0


def _train(settings: Settings, machines: Machines, shared: Path, compiles: bool) -> Report:
    for labels in (OWNER, OWNER, TRAINER):
        machines.add(labels=labels)
    cluster = ps_service.ray.start(
        CLUSTER, 2, ["examples.recommender.model"], shared / "owners", labels=OWNER,
        flags=[] if compiles else ["--no-compile-tables"],
    )  # fmt: skip
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    notes = ray.remote(num_cpus=0)(Notes).options(name=NOTES, scheduling_strategy=here).remote()
    watcher = Watcher(settings, machines, cluster, notes)
    try:
        TorchTrainer(
            trainer.run,
            train_loop_config={"settings": settings},
            scaling_config=ScalingConfig(num_workers=settings.trainers, label_selector=TRAINER),
            run_config=RunConfig(storage_path=str(shared / "train")),
        ).fit()
    finally:
        report = watcher.end()
    cluster.down()
    return report


def _summary(report: Report, folder: Path, console: Console) -> None:
    before, after = report.speeds
    for what, value in (
        ("AUC", f"{report.auc[-1][1]:.4f}"),
        ("steps", f"{len(report.steps)} acknowledged; applied: {', '.join(map(str, report.applied.values()))}"),
        ("Ray knew", f"{report.known - report.cut:.1f} s after the machine was lost"),
        ("moved", f"{report.moved[0]} to {report.moved[1]}, serving {report.back - report.cut:.1f} s after the loss"),
        ("longest pause", f"{report.pause:.1f} s"),
        ("speed", f"{before:.1f} steps/s before, {after:.1f} after"),
        ("figures", str(folder / "recommender-on-ray.json")),
        ("picture", str(folder / "recommender-on-ray.png")),
    ):
        console.print(f"{what:<14} {value}")


def _parse(arguments: list[str] | None) -> tuple[Settings, bool]:
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.recommender.on_ray",
        description="Trains a DLRM on a Ray cluster of three machines, and cuts the power of one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=DEMO_STEPS, help="batches of both trainers together")
    parser.add_argument("--batch-size", type=int, default=default.batch_size, help="clicks per batch")
    parser.add_argument("--held-out", type=int, default=default.held_out, help="most clicks to test with")
    parser.add_argument("--seed", type=int, default=default.seed, help="of first values, and of the clicks")
    parser.add_argument("--no-compile", action="store_true", help="do not compile the loops of tables on the owners")
    parser.add_argument("--out", type=Path, default=default.out, help="directory for the picture and the figures")
    chosen = parser.parse_args(arguments)
    if min(chosen.steps // 4, chosen.batch_size, chosen.held_out) < 1:
        parser.error("batch-size and held-out must be at least 1, and steps at least 4")
    compiles = not chosen.no_compile
    del chosen.no_compile
    return Settings(**vars(chosen)), compiles


if __name__ == "__main__":
    sys.exit(main())
