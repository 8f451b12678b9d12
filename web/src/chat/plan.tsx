// Plan of a run as a checklist.

import {
  CheckCircleFilled,
  CloseCircleFilled,
  LoadingOutlined,
  MinusCircleOutlined,
  RetweetOutlined,
} from "@ant-design/icons";
import { memo, type ReactNode } from "react";
import type { PlanStepShape } from "../wire";

const STATUSES: Record<PlanStepShape["status"], { label: string; icon: ReactNode }> = {
  pending: { label: "To do", icon: <i className="pending-step" /> },
  running: { label: "Running", icon: <LoadingOutlined /> },
  done: { label: "Done", icon: <CheckCircleFilled className="success" /> },
  failed: { label: "Failed", icon: <CloseCircleFilled className="error" /> },
  changed: { label: "Replanned", icon: <RetweetOutlined className="warning" /> },
  dropped: { label: "Skipped", icon: <MinusCircleOutlined /> },
};

export const Plan = memo(function Plan({ steps, running }: { steps: readonly PlanStepShape[]; running: boolean }) {
  const done = steps.filter((step) => step.status === "done").length;
  return (
    <section className="plan" aria-label="Plan">
      <header>
        <h4>Plan</h4>
        <span className="faint">
          {done} of {steps.length} done
        </span>
      </header>
      <ol>
        {steps.map((step, index) => {
          const status = step.status === "running" && !running ? "dropped" : step.status; // the run ended during it
          const { label, icon } = STATUSES[status];
          return (
            <li key={index} className={`is-${status}`} data-status={status}>
              <span className="status-icon" role="img" aria-label={label} title={label}>
                {icon}
              </span>
              <span>{step.text}</span>
            </li>
          );
        })}
      </ol>
    </section>
  );
});
