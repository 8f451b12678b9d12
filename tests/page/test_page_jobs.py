"""Jobs and schedules: live updates, cancel and retry, and creating, pausing, running and deleting a schedule."""

import json
import re

import pytest
from browser import PHONE, GatewayProcess, Tab, Windows, script
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.slow
ENDLESS = script([["pause", 3600]])
QUICK = script([["text", "A poem about **roses**."]])
BROKEN = script([["fail", "the key is not valid"]])


def delegate(tab: Tab, *tasks: str, **options: str) -> None:
    """Make the helper delegate these tasks to the writer."""
    arguments = [{"target_agent": "writer", "task_description": task, **options} for task in tasks]
    tab.send(json.dumps([[["call", "delegate_task", each] for each in arguments], [["text", "Delegated."]]]))
    tab.answers.first.wait_for()


def job_rows(tab: Tab) -> Locator:
    return tab.page.locator(".jobs tbody tr.ant-table-row")


def create_schedule(tab: Tab, name: str, task: str, cron: str) -> None:
    """Fill in the form of a new schedule and submit it."""
    for label, text in (("Name", name), ("Task", task), ("Cron expression", cron)):
        tab.page.get_by_label(label, exact=True).fill(text)
    tab.button("Create", exact=True).click()


def check_layout(tab: Tab, state: str) -> None:
    """Check that axe finds no violation and that the page does not scroll sideways."""
    assert tab.axe_violations(minor=True) == [], state
    assert tab.fits_width(), state


def test_job_is_listed_cancelled_and_retried_live(gateway: GatewayProcess, windows: Windows) -> None:
    window = windows.tabs(gateway)
    tab, other = next(window).open(), next(window).open("/jobs")
    expect(other.page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    delegate(tab, ENDLESS, priority="urgent", deadline="2 hours")
    row = job_rows(other)
    expect(row).to_have_count(1)
    for text in ("Running", "1 attempt", "Urgent", "in 1 h", "helper", "writer"):
        expect(row).to_contain_text(text)
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("Cancelled")
    expect(row).to_contain_text("by owner")
    row.get_by_role("button", name="Retry").click()
    expect(row).to_contain_text("Running")
    expect(row).to_contain_text("2 attempts")
    gateway.kill()
    expect(row.get_by_role("button", name="Cancel")).to_be_disabled()
    gateway.start()
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("Cancelled")
    assert tab.errors == other.errors == []


def test_job_details_show_the_result_the_session_and_the_runs(tab: Tab) -> None:
    delegate(tab, QUICK, BROKEN)
    tab.open_view("jobs")
    expect(job_rows(tab)).to_have_count(2)
    failed = job_rows(tab).filter(has_text="Failed")
    expect(failed).to_contain_text("The key is not valid")
    expect(job_rows(tab).filter(has_text="Done").get_by_role("button")).to_have_count(0)
    tab.page.get_by_label("Status").click()
    tab.page.locator(".ant-select-item", has_text="Failed").click()
    expect(job_rows(tab)).to_have_count(1)
    failed.get_by_role("link").click()
    details = tab.page.locator(".job")
    expect(details.get_by_role("alert")).to_contain_text("The key is not valid")
    tab.button("Retry").click()
    expect(details).to_contain_text("2 attempts")
    expect(details.locator(".run-list li")).to_have_count(2)
    tab.page.reload()
    expect(details.locator(".run-list li")).to_have_count(2)
    details.locator(".run-list a").first.click()
    expect(tab.page.get_by_role("heading", name="Run details")).to_be_visible()
    tab.page.go_back()
    tab.button("All jobs").click()
    job_rows(tab).filter(has_text="Done").click()
    expect(details.locator("strong", has_text="roses")).to_be_visible()
    details.get_by_role("link", name="Open").click()
    tab.wait_for_answer("A poem about roses.")
    tab.page.reload()
    tab.wait_for_answer("A poem about roses.")
    tab.page.go_back()
    details.get_by_role("link", name="helper").click()
    tab.wait_for_answer("Delegated.")


def test_url_of_an_unknown_job_shows_an_error(tab: Tab) -> None:
    tab.open("/jobs/0000000000000000")
    expect(tab.page.get_by_role("heading", name="Job details")).to_be_visible()
    expect(tab.page.locator(".view").get_by_role("alert")).to_contain_text("Couldn’t load this job. Job not found")


def test_schedule_is_created_paused_run_and_deleted(tab: Tab) -> None:
    page = tab.page
    tab.open_view("jobs")
    page.locator(".tabs").get_by_role("link", name="Schedules").click()
    expect(page.get_by_text("atlas schedule add")).to_be_visible()
    tab.button("New schedule").click()
    tab.button("Create", exact=True).click()
    expect(page.locator(".field [role=alert]")).to_have_count(3)
    create_schedule(tab, "news", "What is new?", "99 9 * * *")
    expect(page.locator(".field", has_text="Cron").get_by_role("alert")).to_contain_text("cron expression")
    tab.button("Weekdays at 09:00").click()
    tab.button("Create", exact=True).click()
    card = page.locator(".card", has_text="news")
    expect(card).to_contain_text("Weekdays at 09:00")
    expect(card).to_contain_text("Next run in")
    card.get_by_role("switch").click()
    expect(card).to_contain_text("Paused")
    page.reload()
    expect(card.get_by_role("switch")).not_to_be_checked()
    card.get_by_role("switch").click()
    expect(card).to_contain_text("Next run in")
    tab.button("New schedule").click()
    create_schedule(tab, "news", "What is new?", "@daily")
    expect(page.locator(".field", has_text="Name").get_by_role("alert")).to_have_text(re.compile("already"))
    page.keyboard.press("Escape")
    card.get_by_role("button", name="Run now: news").click()
    expect(page.locator(".job")).to_contain_text("You wrote: What is new?")
    page.locator(".job .facts").get_by_role("link", name="news").click()
    card.get_by_role("button", name="Delete news").click()
    page.locator(".ant-modal").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()


def test_jobs_are_accessible_and_fit_on_a_phone(gateway: GatewayProcess, windows: Windows) -> None:
    tab = next(windows.tabs(gateway, color_scheme="dark", **PHONE)).open("/jobs")
    page = tab.page
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    check_layout(tab, "no jobs")
    tab.open("/")
    delegate(tab, "w" * 300, ENDLESS, BROKEN, priority="urgent", deadline="5 minutes")
    tab.open("/jobs")
    expect(job_rows(tab)).to_have_count(3)
    expect(job_rows(tab).filter(has_text="Failed")).to_have_count(1)
    check_layout(tab, "jobs")
    job_rows(tab).filter(has_text="www").get_by_role("link").click()
    expect(page.locator(".job .panel")).to_be_visible()
    check_layout(tab, "job details")
    tab.button("All jobs").click()
    page.locator(".tabs").get_by_role("link", name="Schedules").click()
    expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
    check_layout(tab, "no schedules")
    tab.button("New schedule").click()
    tab.button("Create", exact=True).click()
    check_layout(tab, "form with errors")
    create_schedule(tab, "n" * 64, "t" * 300, "1,2,3,4,5,6 9-17 1,15 * mon-fri")
    page.locator(".card").get_by_role("switch").click()
    expect(page.locator(".card")).to_contain_text("Paused")
    check_layout(tab, "schedules")
    assert tab.errors == []
