"""Evaluation: run a file of cases with agents and models, score the results and compare them with earlier ones."""

from atlas_agents.evaluation.cases import Case, Suite, read_suite
from atlas_agents.evaluation.runner import Evaluation, EvaluationOptions, Evaluator, Result, ResultFile
from atlas_agents.evaluation.scorers import CallMade, Outcome, Score

__all__ = [
    "CallMade",
    "Case",
    "Evaluation",
    "EvaluationOptions",
    "Evaluator",
    "Outcome",
    "Result",
    "ResultFile",
    "Score",
    "Suite",
    "read_suite",
]
