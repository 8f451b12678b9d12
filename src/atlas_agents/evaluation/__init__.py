"""Evaluation: run a file of cases with agents and models, score the results and compare them with earlier ones."""

from atlas_agents.evaluation.cases import Case, Suite, read_suite
from atlas_agents.evaluation.report import (
    CaseChange,
    ColumnSummary,
    EvaluationReport,
    Interval,
    ScoreComparison,
    TagSummary,
    list_evaluations,
    make_report,
    read_evaluation,
    write_junit,
    write_report,
)
from atlas_agents.evaluation.runner import Evaluation, EvaluationOptions, Evaluator, Result, ResultFile
from atlas_agents.evaluation.scorers import CallMade, Outcome, Score

__all__ = [
    "CallMade",
    "Case",
    "CaseChange",
    "ColumnSummary",
    "Evaluation",
    "EvaluationOptions",
    "EvaluationReport",
    "Evaluator",
    "Interval",
    "Outcome",
    "Result",
    "ResultFile",
    "Score",
    "ScoreComparison",
    "Suite",
    "TagSummary",
    "list_evaluations",
    "make_report",
    "read_evaluation",
    "read_suite",
    "write_junit",
    "write_report",
]
