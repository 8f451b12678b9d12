// Jobs as the page shows them: labels of their states, available actions, and a list that merges live updates.

import type { JobShape } from "../wire";
import { formatRelativeTime, formatTimeOrDate, toSentence } from "./format";

export type JobState = JobShape["state"];

export const JOB_STATES: Record<JobState, { label: string; color: string; description: string }> = {
  queued: { label: "Queued", color: "default", description: "Waiting for a free worker or for its next attempt." },
  running: {
    label: "Running",
    color: "processing",
    description: "The agent is working on it, or waiting for jobs that it has delegated.",
  },
  done: { label: "Done", color: "success", description: "The result was sent to the requester." },
  failed: { label: "Failed", color: "error", description: "It is not retried automatically: the error is permanent." },
  dead: { label: "Out of retries", color: "error", description: "All automatic attempts failed." },
  expired: { label: "Expired", color: "warning", description: "The deadline passed before it was done." },
  cancelled: { label: "Cancelled", color: "default", description: "It was cancelled, or is no longer needed." },
};

export const PRIORITY_LABELS: Record<JobShape["priority"], string> = {
  low: "Low",
  normal: "Normal",
  high: "High",
  urgent: "Urgent",
};

export const isOpenJob = ({ state }: Pick<JobShape, "state">): boolean => state === "queued" || state === "running";

/** Return what the user can do with a job: cancel an open one, retry one that ended without a result. */
export function jobAction(job: Pick<JobShape, "state">): "cancel" | "retry" | undefined {
  if (isOpenJob(job)) return "cancel";
  return job.state === "done" ? undefined : "retry";
}

/** Return the name of the agent, schedule or user that requested the job. */
export function jobRequester({ kind, askedBy, sessionKey, user }: JobShape): string {
  if (kind === "schedule") return /(?:^|\/)schedules\/([^/]+)\/jobs\/[^/]+$/.exec(sessionKey)?.[1] ?? "schedule";
  return askedBy || user || "unknown";
}

export function formatAttempts({ attempts = 0, state, dueAt }: JobShape, now: number): string {
  if (state === "queued" && attempts > 0 && dueAt > now) return `Retry ${formatRelativeTime(dueAt, now)}`;
  return attempts === 0 ? "" : attempts === 1 ? "1 attempt" : `${attempts} attempts`;
}

/** Format the deadline: relative while the job is open, absolute afterwards. */
export function formatDeadline(job: JobShape, now: number): string {
  if (!job.deadline) return "";
  return isOpenJob(job) && job.deadline > now
    ? formatRelativeTime(job.deadline, now)
    : formatTimeOrDate(job.deadline, now);
}

/** Return why the job, or its last attempt, ended without a result. */
export function jobError({ state, error }: JobShape): string {
  if (!error || state === "done" || state === "running") return "";
  return toSentence(error);
}

/** Merge live updates into listed jobs: replace changed ones, add new ones, drop those that left the filter.
    While older pages are not loaded (`hasMore`), jobs older than the listed ones are not added. */
export function mergeJobs(
  listed: readonly JobShape[],
  updates: ReadonlyMap<string, JobShape>,
  states: readonly JobState[] = [],
  hasMore = false,
): JobShape[] {
  const listedIds = new Set(listed.map(({ jobId }) => jobId));
  const oldest = hasMore ? (listed.at(-1)?.createdAt ?? 0) : 0;
  const added = [...updates.values()].filter((job) => !listedIds.has(job.jobId) && job.createdAt >= oldest).reverse();
  return [...added, ...listed.map((job) => updates.get(job.jobId) ?? job)]
    .filter((job) => states.length === 0 || states.includes(job.state))
    .sort((a, b) => b.createdAt - a.createdAt);
}
