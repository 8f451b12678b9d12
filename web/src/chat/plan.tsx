// The plan of a turn, ticked off step by step.

import {
  CheckCircleFilled,
  CloseCircleFilled,
  LoadingOutlined,
  MinusCircleOutlined,
  RetweetOutlined,
} from "@ant-design/icons";
import { memo, type ReactNode } from "react";
import type { PlanStepShape } from "../wire";

type Status = PlanStepShape["status"];

const SIGNS: Record<Status, ReactNode> = {
  pending: <i className="open-step" />,
  running: <LoadingOutlined />,
  done: <CheckCircleFilled className="good" />,
  failed: <CloseCircleFilled className="bad" />,
  changed: <RetweetOutlined className="wait" />,
  dropped: <MinusCircleOutlined />,
};
const WORDS: Record<Status, string> = {
  pending: "to do",
  running: "under way",
  done: "done",
  failed: "failed",
  changed: "planned anew",
  dropped: "dropped",
};

export const Plan = memo(function Plan({ steps, open }: { steps: readonly PlanStepShape[]; open: boolean }) {
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
        {steps.map((step, place) => {
          const status = step.status === "running" && !open ? "dropped" : step.status; // the turn ended in the middle of it
          return (
            <li key={place} className={`is-${status}`} data-status={status}>
              <span className="sign" role="img" aria-label={WORDS[status]} title={WORDS[status]}>
                {SIGNS[status]}
              </span>
              <span>{step.text}</span>
            </li>
          );
        })}
      </ol>
    </section>
  );
});
