"""A job that checks its own nodes before it trains: what it decides, what it writes down, and what is made of that."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmb_common.causes.diagnosis import diagnose
from llmb_common.errors import EnvironmentLacks, SchedulerError
from llmb_common.executors.slurm import look as slurm_look
from llmb_common.fabric.judging import judge
from llmb_common.fabric.measurement import FabricMeasurement, NodeMeasurement
from llmb_common.fabric.verdict import FabricFinding
from llmb_common.health import own_nodes
from llmb_common.health.ask import Health
from llmb_common.health.own_nodes import END, MOST_RESTARTS, TRAIN, WITHOUT, Decision, decide
from llmb_common.health.verdicts import Fabric, NodeVerdict
from llmb_common.nodes.findings import Remark
from llmb_common.planning.outlook import CHECK_SECONDS, MOST_CHECK_SECONDS, start_seconds, time_lines
from llmb_common.runs.finding import attempts_of, end_of
from llmb_common.runs.record import UNFIT, RunRecord
from llmb_common.submission.bad_nodes import shown_bad
from llmb_common.submission.excluded_nodes import exclusions
from llmb_common.timing.job_events import read_events
from support.plans import plan, script_of
from support.runs import make_run
from support.slurm_answers import chosen
