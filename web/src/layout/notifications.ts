// Silent browser notifications about approvals, answers and jobs while the page is in the background, if the user wants them.

import { useEffect } from "react";
import { useClient } from "../state/hooks";
import { currentPreferences } from "../state/preferences";
import type { JobShape } from "../wire";
import { navigate, type Route } from "./router";

const ENDED: Partial<Record<JobShape["state"], string>> = {
  done: "Job finished",
  failed: "Job failed",
  dead: "Job failed",
};

export function useNotifications(): void {
  const client = useClient();
  useEffect(() => {
    let known: Set<string> | undefined;
    const checkApprovals = () => {
      const { approvals, sessionsLoaded } = client.state.current;
      const added = approvals.filter(({ approvalId }) => !known?.has(approvalId));
      if (known && currentPreferences().notifyApprovals)
        for (const { approvalId, agentId, toolName } of added)
          notify(`approval ${approvalId}`, "Approval needed", `${agentId ?? "An agent"} wants to use ${toolName}`, {
            view: "approvals",
            id: "",
          });
      if (sessionsLoaded) known = new Set(approvals.map(({ approvalId }) => approvalId));
    };
    let unread = client.state.current.unread;
    const checkAnswers = () => {
      const { unread: current, sessions } = client.state.current;
      const added = [...current].filter((key) => !unread.has(key));
      unread = current;
      if (!currentPreferences().notifyAnswers) return;
      for (const key of added) {
        const label = sessions.find(({ sessionKey }) => sessionKey === key)?.label;
        notify(`answer ${key}`, "Answer finished", label || "New chat", { view: "chat", id: key });
      }
    };
    let followsJobs = false;
    const followJobs = () => {
      const online = client.state.current.status === "online";
      if (online && !followsJobs && currentPreferences().notifyJobs)
        client.request("jobs.list", { limit: 1 }).catch(() => undefined); // subscribes to job updates
      followsJobs = online && currentPreferences().notifyJobs;
    };
    const reportJob = (job: JobShape) => {
      const title = ENDED[job.state];
      if (title && currentPreferences().notifyJobs)
        notify(`job ${job.jobId}`, title, job.task.slice(0, 200), { view: "jobs", id: job.jobId });
    };
    client.jobListeners.add(reportJob);
    const unsubscribe = client.state.subscribe(() => {
      checkApprovals();
      checkAnswers();
      followJobs();
    });
    return () => {
      unsubscribe();
      client.jobListeners.delete(reportJob);
    };
  }, [client]);
}

function notify(tag: string, title: string, body: string, target: Route): void {
  if (!document.hidden || !("Notification" in window) || Notification.permission !== "granted") return;
  const notification = new Notification(title, { tag, body, silent: true });
  notification.onclick = () => {
    window.focus();
    navigate(target);
    notification.close();
  };
}
