// What every view but the chat has: a title, a line that says what it is for, and room below.

import { Alert, Spin } from "antd";
import type { ReactNode } from "react";
import type { Asked } from "../state/use";

export function Frame({
  title,
  about,
  extra,
  children,
}: {
  title: string;
  about: string;
  extra?: ReactNode;
  children: ReactNode;
}) {
  return (
    <div className="view">
      <div className="view-inside">
        <header className="view-head">
          <div>
            <h1>{title}</h1>
            <p>{about}</p>
          </div>
          {extra && <div className="extra">{extra}</div>}
        </header>
        {children}
      </div>
    </div>
  );
}

/** What was asked for, or that it is on its way, or why it did not come. */
export function Shown<T>({ asked, children }: { asked: Asked<T>; children: (answer: T) => ReactNode }) {
  if (asked.answer !== undefined) return children(asked.answer);
  if (asked.error) return <Alert type="warning" showIcon title={asked.error} />;
  return <Spin className="middle" />;
}

export function Nothing({ icon, title, children }: { icon: ReactNode; title: string; children?: ReactNode }) {
  return (
    <div className="nothing">
      <span className="icon" aria-hidden>
        {icon}
      </span>
      <h2>{title}</h2>
      <div>{children}</div>
    </div>
  );
}
