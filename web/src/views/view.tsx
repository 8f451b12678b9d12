// Shared parts of all views except the chat: page layout, loading and error states, and empty states.

import { Alert, Button, Tag } from "antd";
import { type ReactNode, useEffect, useRef } from "react";
import { RouteLink } from "../components/link";
import { hasNavigated, type View as RouteView, useRoute } from "../layout/router";
import { type Query, useAppState } from "../state/hooks";
import type { RunShape } from "../wire";

interface ViewProps {
  title: string;
  description: string;
  /** Controls beside the title. */
  controls?: ReactNode;
  /** Tabs below the title, of which one is this view. */
  tabs?: readonly { view: RouteView; name: string }[];
  children: ReactNode;
}

export function View({ title, description, controls, tabs, children }: ViewProps) {
  const route = useRoute();
  const { principal } = useAppState();
  const visible = tabs?.filter(
    ({ view }) =>
      (view !== "audit" || principal?.sessions !== "own") &&
      (view !== "evaluations" || principal?.scopes.includes("admin")),
  );
  const heading = useRef<HTMLHeadingElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another title is another page, which starts at its heading
  useEffect(() => {
    if (hasNavigated()) heading.current?.focus({ preventScroll: true });
  }, [title]);
  return (
    <div className="view">
      <div className="view-content">
        <header className="view-header">
          <div>
            <h1 ref={heading} tabIndex={-1}>
              {title}
            </h1>
            <p>{description}</p>
          </div>
          {controls && <div className="controls">{controls}</div>}
        </header>
        {visible && (
          <nav className="tabs" aria-label="Tabs">
            {visible.map(({ view, name }) => (
              <RouteLink key={view} to={{ view, id: "" }} aria-current={route.view === view ? "page" : undefined}>
                {name}
              </RouteLink>
            ))}
          </nav>
        )}
        {children}
      </div>
    </div>
  );
}

export const JOB_TABS = [
  { view: "jobs", name: "Jobs" },
  { view: "schedules", name: "Schedules" },
] as const;

export const KNOWLEDGE_TABS = [
  { view: "knowledge", name: "Documents" },
  { view: "memories", name: "Memories" },
] as const;

export const ACTIVITY_TABS = [
  { view: "runs", name: "Runs" },
  { view: "audit", name: "Audit log" },
  { view: "usage", name: "Usage" },
  { view: "evaluations", name: "Evaluations" },
] as const;

interface QueryResultProps<T> {
  query: Query<T>;
  /** What is loaded, for the error message: "Couldn’t load agents." */
  what?: string;
  children: (data: T) => ReactNode;
}

/** Renders the data of a query, a skeleton while it loads, or its error. */
export function QueryResult<T>({ query, what = "this view", children }: QueryResultProps<T>) {
  if (query.data !== undefined) return children(query.data);
  if (query.error) return <LoadError what={what} reason={query.error} onRetry={query.reload} />;
  return <Loading />;
}

export function LoadError({ what, reason, onRetry }: { what: string; reason: string; onRetry: () => void }) {
  return (
    <Alert
      type="error"
      showIcon
      role="alert"
      title={`Couldn’t load ${what}. ${reason}`}
      action={
        <Button size="small" onClick={onRetry}>
          Try again
        </Button>
      }
    />
  );
}

/** The button below a list that shows its next page. */
export function ShowMore({ onClick }: { onClick: () => void }) {
  return (
    <Button block type="text" onClick={onClick}>
      Show more
    </Button>
  );
}

/** Placeholder lines, which appear after 200 ms. */
export function Loading() {
  return (
    <div className="skeleton" role="status" aria-label="Loading">
      {[92, 78, 85, 60].map((width) => (
        <i key={width} style={{ width: `${width}%` }} />
      ))}
    </div>
  );
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
