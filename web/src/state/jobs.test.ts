import { expect, it } from "vitest";
import type { JobShape } from "../wire";
import { askerOf, choiceOf, deadlineOf, JOB_STATES, type JobState, merged, triesOf, troubleOf } from "./jobs";
import { cronWords, EXAMPLES, faultOf, faultsOf } from "./schedules";
import { fromNow } from "./words";

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
const told = (...jobs: JobShape[]) => new Map(jobs.map((each) => [each.jobId, each]));

it("a list follows what is told: changed in place, the new one first", () => {
  const listed = [job("b", 2), job("a", 1)];
  const changed = job("a", 1, { state: "done" });
  expect(merged(listed, told(changed, job("c", 3), job("d", 3)))).toEqual([
    job("d", 3),
    job("c", 3),
    job("b", 2),
    changed,
  ]);
});

it("what no longer fits the filter leaves the list, and what begins to fit comes in", () => {
  const listed = [job("b", 2), job("a", 1)];
  const news = told(job("b", 2, { state: "running" }), job("0", 0), job("x", 5, { state: "dead" }));
  expect(merged(listed, news, ["queued"]).map(({ jobId }) => jobId)).toEqual(["a", "0"]);
  expect(merged(listed, news, ["queued"], true).map(({ jobId }) => jobId)).toEqual(["a"]);
});

it("an open job can be stopped, one that was not done tried again, and a done one is left alone", () => {
  const choices = (Object.keys(JOB_STATES) as JobState[]).map((state) => [state, choiceOf({ state })]);
  expect(Object.fromEntries(choices)).toEqual({
    queued: "cancel",
    running: "cancel",
    done: undefined,
    failed: "retry",
    dead: "retry",
    expired: "retry",
    cancelled: "retry",
  });
});

it("whoever asked has a name", () => {
  expect(askerOf(job("a", 1, { askedBy: "lead", user: "ann" }))).toBe("lead");
  expect(askerOf(job("a", 1, { user: "ann" }))).toBe("ann");
  expect(askerOf(job("a", 1, { kind: "schedule", sessionKey: "ann/schedules/news/jobs/a", user: "ann" }))).toBe("news");
});

it("tries and deadlines are told as they matter", () => {
  expect(triesOf(job("a", 1), 1)).toBe("");
  expect(triesOf(job("a", 1, { attempts: 1, state: "running" }), 1)).toBe("1 try");
  expect(triesOf(job("a", 1, { attempts: 2, dueAt: 31_000 }), 1000)).toBe("try 3 in 30 s");
  expect(triesOf(job("a", 1, { attempts: 5, state: "dead" }), 1)).toBe("5 tries");
  expect(troubleOf(job("a", 1, { state: "cancelled", error: "by ann" }))).toBe("stopped by ann");
  expect(troubleOf(job("a", 1, { state: "failed", error: "no key" }))).toBe("no key");
  expect(troubleOf(job("a", 1, { state: "running", error: "no key" }))).toBe("");
  expect(deadlineOf(job("a", 1), 1)).toBe("");
  expect(deadlineOf(job("a", 1, { deadline: 60_000 * 90 }), 0)).toBe("in 1 h");
  expect(deadlineOf(job("a", 1, { deadline: 60_000 * 90, state: "done" }), 0)).not.toContain("in");
  expect([30_000, 60_000 * 59, 3_600_000 * 47, 86_400_000 * 3].map((at) => fromNow(at, 0))).toEqual([
    "in 30 s",
    "in 59 min",
    "in 47 h",
    "in 3 days",
  ]);
  expect(fromNow(0, 90_000)).toBe("1 min ago");
});

it("plain cron expressions are told in words, and others are left as they are", () => {
  expect(EXAMPLES.map(cronWords)).toEqual([
    "Every hour",
    "Every day at 09:00",
    "Working days at 09:00",
    "Mondays at 09:00",
    "Day 1 of every month at 09:00",
  ]);
  expect(["@daily", "*/15 * * * *", "30 * * * *", "5 7 * * 7"].map(cronWords)).toEqual([
    "Every day at 00:00",
    "Every 15 minutes",
    "Every hour, 30 min past",
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
    expect(cronWords(other)).toBeUndefined();
});

it("what is wrong with a schedule is said where it is", () => {
  const draft = { name: "news", cron: "@daily", zone: "UTC", task: "look" };
  expect(faultsOf(draft)).toEqual({});
  expect(Object.keys(faultsOf({ name: "a b", cron: " ", zone: "", task: "" }))).toEqual(["name", "cron", "task"]);
  expect(faultOf("'x' is no cron expression: Bad minute")).toEqual({ cron: "'x' is no cron expression: Bad minute" });
  expect(Object.keys(faultOf("there is no time zone 'X': it is one like Europe/Berlin, or UTC"))).toEqual(["zone"]);
  expect(Object.keys(faultOf("there is a schedule of this name already"))).toEqual(["name"]);
  expect(Object.keys(faultOf("nothing can be kept at the moment"))).toEqual(["form"]);
});
