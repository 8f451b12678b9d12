// Shared parts of all views except the chat: page layout, loading and error states, and empty states.

import { Alert, Spin, Tag } from "antd";
import type { ReactNode } from "react";
import type { Query } from "../state/hooks";
import type { RunShape } from "../wire";

interface ViewProps {
  title: string;
  description: string;
  /** Controls beside the title. */
  controls?: ReactNode;
  children: ReactNode;
}

export function View({ title, description, controls, children }: ViewProps) {
  return (
    <div className="view">
      <div className="view-content">
        <header className="view-header">
          <div>
            <h1>{title}</h1>
            <p>{description}</p>
          </div>
          {controls && <div className="controls">{controls}</div>}
        </header>
        {children}
      </div>
    </div>
  );
}

/** Renders the data of a query, a spinner while it loads, or its error. */
export function QueryResult<T>({ query, children }: { query: Query<T>; children: (data: T) => ReactNode }) {
  if (query.data !== undefined) return children(query.data);
  if (query.error) return <Alert type="warning" showIcon title={query.error} />;
  return <Spin className="centered" />;
}

export function EmptyState({ icon, title, children }: { icon: ReactNode; title: string; children?: ReactNode }) {
  return (
    <div className="empty-state">
      <span className="icon" aria-hidden>
        {icon}
      </span>
      <h2>{title}</h2>
      <div>{children}</div>
    </div>
  );
}

const RUN_STATUSES: Record<RunShape["status"], { label: string; color: string }> = {
  queued: { label: "Queued", color: "default" },
  running: { label: "Running", color: "processing" },
  waiting: { label: "Waiting", color: "warning" },
  done: { label: "Done", color: "success" },
  failed: { label: "Failed", color: "error" },
  cancelled: { label: "Cancelled", color: "default" },
};

export const RunStatusTag = ({ status }: { status: RunShape["status"] }) => (
  <Tag color={RUN_STATUSES[status].color}>{RUN_STATUSES[status].label}</Tag>
);
