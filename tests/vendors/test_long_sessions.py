"""Long sessions on the strict doubles: no vendor refuses a request after cleared results or with a cut history.

Anthropic's newest models bind thinking blocks to the conversation before them, Gemini and DeepSeek require those of the
current turn, and all of them refuse a result without its call. Summaries are a column of `test_model_families.py`.
"""

import pytest

from atlas_agents import Compaction, History
from vendors.families import FAMILIES, check_long_session

NAMES = ("Claude 5.5", "GPT-6 and 5.6", "Gemini 3", "DeepSeek 4")


@pytest.mark.parametrize("name", NAMES)
async def test_no_request_is_refused_after_results_were_cleared(name: str) -> None:
    session = await check_long_session(FAMILIES[name], History(compaction=Compaction(window=3000)))
    assert session.summaries


@pytest.mark.parametrize("name", NAMES)
async def test_no_request_is_refused_after_the_history_was_cut(name: str) -> None:
    session = await check_long_session(FAMILIES[name], History(max_tokens=1500))
    assert session.summaries == 0
