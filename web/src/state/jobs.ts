// Jobs as people read of them: the words for their states, what can be done with one, and a list that stays true.

import type { JobShape } from "../wire";
import { fromNow, whenOf } from "./words";

export type JobState = JobShape["state"];

export const JOB_STATES: Record<JobState, { words: string; colour: string; about: string }> = {
  queued: { words: "waits", colour: "default", about: "It waits for a free place, or for its next try." },
  running: {
    words: "under way",
    colour: "processing",
    about: "Its turn is under way, or it waits for jobs that it gave out itself.",
  },
  done: {
    words: "done",
    colour: "success",
    about: "Its answer is the last word in its session, and whoever asked has it.",
  },
  failed: { words: "failed", colour: "error", about: "Another try by itself would change nothing." },
  dead: { words: "given up", colour: "error", about: "Tried as often as it may be, in vain." },
  expired: { words: "expired", colour: "warning", about: "Its deadline passed before it was done." },
  cancelled: { words: "stopped", colour: "default", about: "Somebody stopped it, or it is not needed any more." },
};

export const isOpen = ({ state }: Pick<JobShape, "state">): boolean => state === "queued" || state === "running";

/** What a person can have done with a job: an open one is stopped, one that was not done is tried again. */
export function choiceOf(job: Pick<JobShape, "state">): "cancel" | "retry" | undefined {
  if (isOpen(job)) return "cancel";
  return job.state === "done" ? undefined : "retry";
}

/** Who asked: an agent, a schedule, or a person. */
export function askerOf({ kind, askedBy, sessionKey, user }: JobShape): string {
  if (kind === "schedule") return /(?:^|\/)schedules\/([^/]+)\/jobs\/[^/]+$/.exec(sessionKey)?.[1] ?? "a schedule";
  return askedBy || user || "somebody";
}

/** How often it was tried, and when it is again. */
export function triesOf({ attempts = 0, state, dueAt }: JobShape, now: number): string {
  if (state === "queued" && attempts > 0 && dueAt > now) return `try ${attempts + 1} ${fromNow(dueAt, now)}`;
  return attempts === 0 ? "" : attempts === 1 ? "1 try" : `${attempts} tries`;
}

/** How long there is, while it matters; then when it was. */
export function deadlineOf(job: JobShape, now: number): string {
  if (!job.deadline) return "";
  return isOpen(job) && job.deadline > now ? fromNow(job.deadline, now) : whenOf(job.deadline, now);
}

/** Why it is not done, or was not the last time. Of one that is under way nothing can be said yet. */
export function troubleOf({ state, error }: JobShape): string {
  if (!error || state === "done" || state === "running") return "";
  return /^(by .+|on request)$/.test(error) ? `stopped ${error}` : error;
}

/** What was listed, as it is now: with what is new before it, without what does not belong there any more.
    Where older ones were not asked for yet (`more`), none of them is put in. */
export function merged(
  listed: readonly JobShape[],
  news: ReadonlyMap<string, JobShape>,
  states: readonly JobState[] = [],
  more = false,
): JobShape[] {
  const known = new Set(listed.map(({ jobId }) => jobId));
  const oldest = more ? (listed.at(-1)?.createdAt ?? 0) : 0;
  const added = [...news.values()].filter((job) => !known.has(job.jobId) && job.createdAt >= oldest).reverse();
  return [...added, ...listed.map((job) => news.get(job.jobId) ?? job)]
    .filter((job) => states.length === 0 || states.includes(job.state))
    .sort((a, b) => b.createdAt - a.createdAt);
}
