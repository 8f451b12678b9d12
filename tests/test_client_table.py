"""The table of clients in the docs: each cell that says yes has a test with that client."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "clients.md"
OPENAI, TURNS, TOOLS = ("gateway/test_openai.py", "gateway/test_openai_turns.py", "gateway/test_openai_tools.py")
RESPONSES, CLIENTS = "gateway/test_responses.py", "gateway/test_openai_clients.py"
AGUI, MCP, ACP = "gateway/test_agui_node_client.py", "foreign/test_mcp_server.py", "cli/test_acp.py"
LANGCHAIN, PYDANTIC = f"{CLIENTS}::test_langchain_uses_responses", f"{CLIENTS}::test_pydantic_ai_uses_responses"
EDITOR = f"{ACP}::test_editor_shows_a_turn_and_decides_on_its_calls"
PROOFS = {
    "openai SDK, chat completions": {
        "answers": f"{OPENAI}::test_completion_without_streaming",
        "streaming": f"{OPENAI}::test_completion_with_streaming",
        "conversations": f"{TURNS}::test_session_stores_the_history_and_reads_only_the_last_message",
        "tools in the gateway": f"{OPENAI}::test_tools_of_the_agent_run_in_the_gateway_and_are_not_reported",
        "tools in the client": f"{TOOLS}::test_client_runs_the_tools_and_the_turn_goes_on",
        "typed output": f"{OPENAI}::test_structured_output_is_corrected_before_it_is_sent",
        "approvals": f"{TURNS}::test_request_may_wait_for_an_approval",
        "after a restart": f"{TOOLS}::test_waiting_turn_survives_a_restart_of_the_gateway",
    },
    "openai SDK, responses": {
        "answers": f"{RESPONSES}::test_response_shows_the_tools_that_ran_in_the_gateway",
        "streaming": f"{RESPONSES}::test_response_shows_the_tools_that_ran_in_the_gateway",
        "conversations": f"{RESPONSES}::test_previous_response_is_a_position_in_the_session",
        "tools in the gateway": f"{RESPONSES}::test_response_shows_the_tools_that_ran_in_the_gateway",
        "tools in the client": f"{RESPONSES}::test_client_runs_its_tools",
        "typed output": f"{RESPONSES}::test_typed_output_is_sent_after_it_was_validated",
        "after a restart": "gateway/test_gateway_restarts.py::test_background_response_continues_after_kill_9",
    },
    "LangChain, chat completions": {
        "answers": f"{TOOLS}::test_langchain_binds_tools",
        "streaming": f"{TOOLS}::test_langchain_binds_tools",
        "tools in the gateway": f"{TOOLS}::test_langchain_binds_tools",
        "tools in the client": f"{TOOLS}::test_langchain_binds_tools",
        "typed output": f"{TOOLS}::test_langchain_gets_structured_output_by_function_calling",
    },
    "LangChain, responses": dict.fromkeys(
        ("answers", "streaming", "conversations", "tools in the gateway", "tools in the client", "typed output"),
        LANGCHAIN,
    ),
    "pydantic-ai, chat completions": dict.fromkeys(
        ("answers", "tools in the client", "typed output"),
        f"{TOOLS}::test_pydantic_ai_runs_tools_and_gets_typed_output",
    ),
    "pydantic-ai, responses": dict.fromkeys(
        ("answers", "streaming", "conversations", "tools in the gateway", "tools in the client", "typed output"),
        PYDANTIC,
    ),
    "AG-UI (`@ag-ui/client`)": {
        **dict.fromkeys(
            ("answers", "streaming", "conversations", "tools in the gateway"),
            f"{AGUI}::test_page_receives_the_messages_of_the_conversation",
        ),
        "tools in the client": f"{AGUI}::test_page_runs_its_own_tools",
        "approvals": f"{AGUI}::test_page_answers_interrupts_and_resumes",
        "after a restart": f"{AGUI}::test_pending_approval_survives_a_kill",
    },
    "MCP (official client library)": {
        "answers": f"{MCP}::test_agent_tool_continues_a_session",
        "conversations": f"{MCP}::test_agent_tool_continues_a_session",
        "tools in the gateway": f"{MCP}::test_tools_are_listed_called_and_audited_for_the_token_owner",
        "typed output": f"{MCP}::test_tools_have_titles_annotations_and_output_schemas",
        "approvals": f"{MCP}::test_approval_is_asked_from_a_client_that_can_ask",
        "after a restart": f"{MCP}::test_task_outlives_the_gateway_and_its_questions_are_asked_later",
    },
    "ACP (official client library)": {
        **dict.fromkeys(("answers", "streaming", "tools in the gateway", "approvals"), EDITOR),
        "conversations": f"{ACP}::test_session_is_cancelled_and_loaded_by_the_next_process",
        "tools in the client": f"{ACP}::test_files_are_read_and_changed_in_the_buffers_of_the_editor",
        "after a restart": f"{ACP}::test_session_is_cancelled_and_loaded_by_the_next_process",
    },
}


def read_table() -> dict[str, dict[str, str]]:
    table = re.search(r"<!-- clients -->\n(.*?)\n<!-- /clients -->", PAGE.read_text(), re.DOTALL)
    assert table is not None
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines())
    return {name: dict(zip(header[1:], cells, strict=True)) for name, *cells in rows}


def test_table_says_yes_where_a_test_proves_it() -> None:
    proven = {
        name: {feature: "yes" if feature in PROOFS[name] else "–" for feature in row}
        for name, row in read_table().items()
    }
    assert read_table() == proven and list(proven) == list(PROOFS)


def test_proofs_exist() -> None:
    for proof in {each for features in PROOFS.values() for each in features.values()}:
        file, _, name = proof.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), proof
