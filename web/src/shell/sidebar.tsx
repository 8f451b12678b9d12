// What stands at the side of every view: the way to all others, the sessions, and how the connection is.

import {
  AuditOutlined,
  BarChartOutlined,
  CarryOutOutlined,
  EditOutlined,
  FieldTimeOutlined,
  MessageOutlined,
  MoonOutlined,
  QuestionOutlined,
  RobotOutlined,
  SafetyCertificateOutlined,
  SearchOutlined,
  SunOutlined,
  SyncOutlined,
} from "@ant-design/icons";
import { Badge, Button, Tooltip } from "antd";
import type { ReactNode } from "react";
import { useHouse } from "../state/use";
import type { Look } from "../theme";
import { Inside } from "./link";
import { Mark } from "./mark";
import { go, newChat, useRoute, type View } from "./route";
import { SessionList } from "./sessions";

const PLACES: { view: View; name: string; icon: ReactNode }[] = [
  { view: "approvals", name: "Approvals", icon: <SafetyCertificateOutlined aria-hidden /> },
  { view: "agents", name: "Agents and tools", icon: <RobotOutlined aria-hidden /> },
  { view: "jobs", name: "Jobs", icon: <CarryOutOutlined aria-hidden /> },
  { view: "audit", name: "Audit", icon: <AuditOutlined aria-hidden /> },
  { view: "runs", name: "Runs", icon: <FieldTimeOutlined aria-hidden /> },
  { view: "usage", name: "Usage", icon: <BarChartOutlined aria-hidden /> },
];
const LOOKS: Record<Look, { next: Look; icon: ReactNode; name: string }> = {
  system: { next: "light", icon: <SyncOutlined aria-hidden />, name: "Colours: as the system" },
  light: { next: "dark", icon: <SunOutlined aria-hidden />, name: "Colours: light" },
  dark: { next: "system", icon: <MoonOutlined aria-hidden />, name: "Colours: dark" },
};

export interface SidebarProps {
  look: Look;
  onLook: (look: Look) => void;
  onSearch: () => void;
  onHelp: () => void;
  onPick?: () => void;
}

export function Sidebar({ look, onLook, onSearch, onHelp, onPick }: SidebarProps) {
  const { approvals } = useHouse();
  const route = useRoute();
  return (
    <div className="sidebar">
      <header>
        <Mark />
        <strong>Atlas</strong>
        <span className="spread" />
        <Tooltip title="Search (Ctrl K)">
          <Button
            type="text"
            icon={<SearchOutlined aria-hidden />}
            aria-label="Search"
            onClick={() => {
              onPick?.();
              onSearch();
            }}
          />
        </Tooltip>
      </header>
      <Button
        icon={<EditOutlined aria-hidden />}
        block
        className="new"
        onClick={() => {
          go(newChat());
          onPick?.();
        }}
      >
        New chat
      </Button>
      <nav className="places" aria-label="Views">
        {route.view !== "chat" && (
          <Inside to={{ view: "chat", id: "" }} onClick={onPick}>
            <MessageOutlined aria-hidden /> Chat
          </Inside>
        )}
        {PLACES.map(({ view, name, icon }) => (
          <Inside
            key={view}
            to={{ view, id: "" }}
            className={route.view === view ? "active" : undefined}
            aria-current={route.view === view ? "page" : undefined}
            onClick={onPick}
          >
            <span aria-hidden>{icon}</span> {name}
            {view === "approvals" && approvals.length > 0 && (
              <Badge count={approvals.length} size="small" color="var(--amber)" title={`${approvals.length} open`} />
            )}
          </Inside>
        ))}
      </nav>
      <SessionList onPick={onPick} />
      <footer>
        <Connected />
        <span className="spread" />
        <Tooltip title="Keys">
          <Button
            type="text"
            size="small"
            icon={<QuestionOutlined aria-hidden />}
            aria-label="Keyboard shortcuts"
            onClick={onHelp}
          />
        </Tooltip>
        <Tooltip title={LOOKS[look].name}>
          <Button
            type="text"
            size="small"
            icon={LOOKS[look].icon}
            aria-label={LOOKS[look].name}
            onClick={() => onLook(LOOKS[look].next)}
          />
        </Tooltip>
      </footer>
    </div>
  );
}

function Connected() {
  const { link, principal, server } = useHouse();
  const words = {
    online: principal ? `Connected as ${principal.id}` : "Connected",
    connecting: "Connecting…",
    offline: "Not connected",
    refused: "Refused",
  }[link];
  return (
    <Tooltip title={server ? `${server.name} ${server.version}` : undefined}>
      <span className={`connected is-${link}`} role="status">
        <i aria-hidden /> {words}
      </span>
    </Tooltip>
  );
}
