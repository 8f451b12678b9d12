// Sidebar: search, navigation, sessions and the connection status.

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
  SettingOutlined,
  SunOutlined,
  SyncOutlined,
} from "@ant-design/icons";
import { Badge, Button, Tooltip } from "antd";
import type { ReactNode } from "react";
import { Logo } from "../components/icons";
import { RouteLink } from "../components/link";
import { useAppState } from "../state/hooks";
import type { ThemeMode } from "../theme";
import { navigate, newChat, useRoute, type View } from "./router";
import { SessionList } from "./session-list";

const NAVIGATION: { view: View; name: string; icon: ReactNode }[] = [
  { view: "approvals", name: "Approvals", icon: <SafetyCertificateOutlined aria-hidden /> },
  { view: "agents", name: "Agents and tools", icon: <RobotOutlined aria-hidden /> },
  { view: "jobs", name: "Jobs", icon: <CarryOutOutlined aria-hidden /> },
  { view: "audit", name: "Audit log", icon: <AuditOutlined aria-hidden /> },
  { view: "runs", name: "Runs", icon: <FieldTimeOutlined aria-hidden /> },
  { view: "usage", name: "Usage", icon: <BarChartOutlined aria-hidden /> },
];
const THEME_MODES: Record<ThemeMode, { next: ThemeMode; icon: ReactNode; name: string }> = {
  system: { next: "light", icon: <SyncOutlined aria-hidden />, name: "Theme: system" },
  light: { next: "dark", icon: <SunOutlined aria-hidden />, name: "Theme: light" },
  dark: { next: "system", icon: <MoonOutlined aria-hidden />, name: "Theme: dark" },
};

export interface SidebarProps {
  themeMode: ThemeMode;
  onThemeMode: (mode: ThemeMode) => void;
  onSearch: () => void;
  onShortcuts: () => void;
  onNavigate?: () => void;
}

export function Sidebar({ themeMode, onThemeMode, onSearch, onShortcuts, onNavigate }: SidebarProps) {
  const { approvals } = useAppState();
  const route = useRoute();
  const theme = THEME_MODES[themeMode];
  return (
    <div className="sidebar">
      <header>
        <Logo />
        <strong>Atlas</strong>
        <span className="spacer" />
        <Tooltip title="Search (Ctrl K)">
          <Button
            type="text"
            icon={<SearchOutlined aria-hidden />}
            aria-label="Search"
            onClick={() => {
              onNavigate?.();
              onSearch();
            }}
          />
        </Tooltip>
      </header>
      <Button
        icon={<EditOutlined aria-hidden />}
        block
        className="new-chat"
        onClick={() => {
          navigate(newChat());
          onNavigate?.();
        }}
      >
        New chat
      </Button>
      <nav className="navigation" aria-label="Views">
        {route.view !== "chat" && (
          <RouteLink to={{ view: "chat", id: "" }} onClick={onNavigate}>
            <MessageOutlined aria-hidden /> Chat
          </RouteLink>
        )}
        {NAVIGATION.map(({ view, name, icon }) => (
          <RouteLink
            key={view}
            to={{ view, id: "" }}
            className={route.view === view ? "active" : undefined}
            aria-current={route.view === view ? "page" : undefined}
            onClick={onNavigate}
          >
            <span aria-hidden>{icon}</span> {name}
            {view === "approvals" && approvals.length > 0 && (
              <Badge
                count={approvals.length}
                size="small"
                color="var(--warning)"
                title={`${approvals.length} pending`}
              />
            )}
          </RouteLink>
        ))}
      </nav>
      <SessionList onNavigate={onNavigate} />
      <footer>
        <ConnectionIndicator />
        <span className="spacer" />
        <Tooltip title="Keyboard shortcuts">
          <Button
            type="text"
            size="small"
            icon={<QuestionOutlined aria-hidden />}
            aria-label="Keyboard shortcuts"
            onClick={onShortcuts}
          />
        </Tooltip>
        <Tooltip title={theme.name}>
          <Button
            type="text"
            size="small"
            icon={theme.icon}
            aria-label={theme.name}
            onClick={() => onThemeMode(theme.next)}
          />
        </Tooltip>
        <RouteLink
          to={{ view: "settings", id: "" }}
          className={route.view === "settings" ? "action active" : "action"}
          aria-label="Settings"
          aria-current={route.view === "settings" ? "page" : undefined}
          title="Settings"
          onClick={onNavigate}
        >
          <SettingOutlined aria-hidden />
        </RouteLink>
      </footer>
    </div>
  );
}

function ConnectionIndicator() {
  const { status, principal, server } = useAppState();
  const label = {
    online: principal ? `Connected as ${principal.id}` : "Connected",
    connecting: "Connecting…",
    offline: "Disconnected",
    unauthorized: "Access denied",
  }[status];
  return (
    <Tooltip title={server ? `${server.name} ${server.version}` : undefined}>
      <span className={`connection is-${status}`} role="status">
        <i aria-hidden /> {label}
      </span>
    </Tooltip>
  );
}
