import { expect, it } from "vitest";
import type { JobShape } from "../wire";
import { formatRelativeTime } from "./format";
import {
  formatAttempts,
  formatDeadline,
  JOB_STATES,
  type JobState,
  jobAction,
  jobError,
  jobRequester,
  mergeJobs,
} from "./jobs";
import { assignError, CRON_EXAMPLES, describeCron, validateSchedule } from "./schedules";

const job = (jobId: string, createdAt: number, more: Partial<JobShape> = {}): JobShape => ({
  jobId,
  kind: "delegation",
  agentId: "writer",
  task: "t",
  state: "queued",
  priority: "normal",
  sessionKey: `s/jobs/${jobId}`,
  createdAt,
  dueAt: createdAt,
  ...more,
});
const updatesOf = (...jobs: JobShape[]) => new Map(jobs.map((each) => [each.jobId, each]));

it("live updates replace listed jobs and add new ones first", () => {
  const listed = [job("b", 2), job("a", 1)];
  const changed = job("a", 1, { state: "done" });
  expect(mergeJobs(listed, updatesOf(changed, job("c", 3), job("d", 3)))).toEqual([
    job("d", 3),
    job("c", 3),
    job("b", 2),
    changed,
  ]);
});

it("live updates move jobs in and out of a filtered list", () => {
  const listed = [job("b", 2), job("a", 1)];
  const updates = updatesOf(job("b", 2, { state: "running" }), job("0", 0), job("x", 5, { state: "dead" }));
  expect(mergeJobs(listed, updates, ["queued"]).map(({ jobId }) => jobId)).toEqual(["a", "0"]);
  expect(mergeJobs(listed, updates, ["queued"], true).map(({ jobId }) => jobId)).toEqual(["a"]);
});

it("an open job can be cancelled and one without a result retried", () => {
  const actions = (Object.keys(JOB_STATES) as JobState[]).map((state) => [state, jobAction({ state })]);
  expect(Object.fromEntries(actions)).toEqual({
    queued: "cancel",
    running: "cancel",
    done: undefined,
    failed: "retry",
    dead: "retry",
    expired: "retry",
    cancelled: "retry",
  });
});

it("the requester is an agent, a user or a schedule", () => {
  expect(jobRequester(job("a", 1, { askedBy: "lead", user: "ann" }))).toBe("lead");
  expect(jobRequester(job("a", 1, { user: "ann" }))).toBe("ann");
  expect(jobRequester(job("a", 1, { kind: "schedule", sessionKey: "ann/schedules/news/jobs/a", user: "ann" }))).toBe(
    "news",
  );
});

it("attempts, errors and deadlines are formatted by state", () => {
  expect(formatAttempts(job("a", 1), 1)).toBe("");
  expect(formatAttempts(job("a", 1, { attempts: 1, state: "running" }), 1)).toBe("1 attempt");
  expect(formatAttempts(job("a", 1, { attempts: 2, dueAt: 31_000 }), 1000)).toBe("Retry in 30 s");
  expect(formatAttempts(job("a", 1, { attempts: 5, state: "dead" }), 1)).toBe("5 attempts");
  expect(jobError(job("a", 1, { state: "cancelled", error: "cancelled by ann" }))).toBe("Cancelled by ann");
  expect(jobError(job("a", 1, { state: "failed", error: "no key" }))).toBe("No key");
  expect(jobError(job("a", 1, { state: "running", error: "no key" }))).toBe("");
  expect(formatDeadline(job("a", 1), 1)).toBe("");
  expect(formatDeadline(job("a", 1, { deadline: 60_000 * 90 }), 0)).toBe("in 1 h");
  expect(formatDeadline(job("a", 1, { deadline: 60_000 * 90, state: "done" }), 0)).not.toContain("in");
  expect([30_000, 60_000 * 59, 3_600_000 * 47, 86_400_000 * 3].map((at) => formatRelativeTime(at, 0))).toEqual([
    "in 30 s",
    "in 59 min",
    "in 47 h",
    "in 3 days",
  ]);
  expect(formatRelativeTime(0, 90_000)).toBe("1 min ago");
});

it("simple cron expressions are described and others are not", () => {
  expect(CRON_EXAMPLES.map(describeCron)).toEqual([
    "Every hour",
    "Every day at 09:00",
    "Weekdays at 09:00",
    "Mondays at 09:00",
    "Monthly on day 1 at 09:00",
  ]);
  expect(["@daily", "*/15 * * * *", "30 * * * *", "5 7 * * 7"].map(describeCron)).toEqual([
    "Every day at 00:00",
    "Every 15 minutes",
    "Every hour at :30",
    "Sundays at 07:05",
  ]);
  for (const other of [
    "",
    "x",
    "* * * *",
    "0 9 * * 1-5 *",
    "0 9 1 * 1",
    "99 9 * * *",
    "0 24 * * *",
    "0 9 0 * *",
    "*/7 * * * *",
    "0 9 * 1 *",
    "@reboot",
  ])
    expect(describeCron(other)).toBeUndefined();
});

it("errors of a schedule are assigned to their field", () => {
  const draft = { name: "news", cron: "@daily", zone: "UTC", task: "look" };
  expect(validateSchedule(draft)).toEqual({});
  expect(Object.keys(validateSchedule({ name: "a b", cron: " ", zone: "", task: "" }))).toEqual([
    "name",
    "cron",
    "task",
  ]);
  const invalidCron = "invalid cron expression 'x': bad minute";
  expect(assignError(invalidCron)).toEqual({ cron: invalidCron });
  expect(Object.keys(assignError("unknown time zone 'X': expected a name such as Europe/Berlin or UTC"))).toEqual([
    "zone",
  ]);
  expect(Object.keys(assignError("schedule 'news' already exists"))).toEqual(["name"]);
  expect(Object.keys(assignError("the task must not be empty"))).toEqual(["task"]);
  expect(Object.keys(assignError("the store is not available"))).toEqual(["form"]);
});
