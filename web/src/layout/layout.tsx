// Page layout: sidebar, top bar on small screens, connection banner and the current view.

import { MenuOutlined } from "@ant-design/icons";
import { Alert, Badge, Button, Drawer, Spin } from "antd";
import { lazy, Suspense, useEffect, useState } from "react";
import Chat from "../chat/chat";
import { Logo } from "../components/icons";
import { RouteLink } from "../components/link";
import { useAppState } from "../state/hooks";
import type { ThemeMode } from "../theme";
import { navigate, newChat, type Route, useRoute } from "./router";
import { Sidebar } from "./sidebar";

const Approvals = lazy(() => import("../views/approvals"));
const Agents = lazy(() => import("../views/agents"));
const Jobs = lazy(() => import("../views/jobs"));
const AuditLog = lazy(() => import("../views/audit"));
const Runs = lazy(() => import("../views/runs"));
const Usage = lazy(() => import("../views/usage"));
const Settings = lazy(() => import("../views/settings"));
const SearchDialog = lazy(() => import("./search"));
const ShortcutsDialog = lazy(() => import("./shortcuts"));

interface Props {
  themeMode: ThemeMode;
  onThemeMode: (mode: ThemeMode) => void;
}

export function Layout({ themeMode, onThemeMode }: Props) {
  const route = useRoute();
  const [drawerOpen, setDrawerOpen] = useState(false);
  const [searchOpen, setSearchOpen] = useState(false);
  const [shortcutsOpen, setShortcutsOpen] = useState(false);
  useEffect(() => {
    if (route.view === "chat" && !route.id) navigate(newChat(), true);
  }, [route]);
  const openSearch = () => setSearchOpen(true);
  const openShortcuts = () => setShortcutsOpen(true);
  useShortcuts(openSearch, openShortcuts);
  const sidebar = { themeMode, onThemeMode, onSearch: openSearch, onShortcuts: openShortcuts };
  return (
    <div className="layout">
      <a className="skip-link" href="#main">
        Skip to content
      </a>
      <aside>
        <Sidebar {...sidebar} />
      </aside>
      <Drawer
        open={drawerOpen}
        onClose={() => setDrawerOpen(false)}
        placement="left"
        size={300}
        closable={false}
        styles={{ body: { padding: 0 } }}
        aria-label="Menu"
      >
        <Sidebar {...sidebar} onNavigate={() => setDrawerOpen(false)} />
      </Drawer>
      <main id="main" tabIndex={-1}>
        <TopBar onMenu={() => setDrawerOpen(true)} />
        <ConnectionBanner />
        <Suspense fallback={<Spin className="centered" />}>
          <CurrentView route={route} />
        </Suspense>
      </main>
      <Suspense>
        {searchOpen && <SearchDialog onClose={() => setSearchOpen(false)} />}
        {shortcutsOpen && <ShortcutsDialog onClose={() => setShortcutsOpen(false)} />}
      </Suspense>
    </div>
  );
}

function CurrentView({ route }: { route: Route }) {
  switch (route.view) {
    case "chat":
      return route.id ? <Chat id={route.id} /> : null;
    case "approvals":
      return <Approvals />;
    case "agents":
      return <Agents id={route.id} />;
    case "jobs":
      return <Jobs id={route.id} />;
    case "audit":
      return <AuditLog />;
    case "runs":
      return <Runs id={route.id} />;
    case "usage":
      return <Usage />;
    case "settings":
      return <Settings id={route.id} />;
  }
}

function TopBar({ onMenu }: { onMenu: () => void }) {
  const { approvals } = useAppState();
  return (
    <header className="topbar">
      <Badge dot={approvals.length > 0} color="var(--warning-dot)" offset={[-6, 6]}>
        <Button type="text" icon={<MenuOutlined aria-hidden />} aria-label="Menu" onClick={onMenu} />
      </Badge>
      <RouteLink to={{ view: "chat", id: "" }} className="home">
        <Logo size={22} /> Atlas
      </RouteLink>
      {approvals.length > 0 && (
        <RouteLink to={{ view: "approvals", id: "" }} className="pending-approvals">
          {approvals.length === 1 ? "1 approval" : `${approvals.length} approvals`}
        </RouteLink>
      )}
    </header>
  );
}

/** Shown only after a delay, so that a short interruption does not flash a banner. */
function ConnectionBanner() {
  const { status, wasOnline, restarting } = useAppState();
  const [delayed, setDelayed] = useState(false);
  const online = status === "online";
  useEffect(() => {
    if (online) return setDelayed(false);
    const timer = setTimeout(() => setDelayed(true), wasOnline ? 400 : 2500);
    return () => clearTimeout(timer);
  }, [online, wasOnline]);
  if (online || !delayed) return null;
  const problem = restarting
    ? "The gateway is restarting."
    : wasOnline
      ? "Connection lost."
      : "Cannot reach the gateway.";
  return <Alert banner type="warning" role="status" title={`${problem} Reconnecting… Unsent messages are kept.`} />;
}

function useShortcuts(openSearch: () => void, openShortcuts: () => void): void {
  useEffect(() => {
    const actionFor = (event: KeyboardEvent): (() => void) | undefined => {
      const typing = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      const command = event.ctrlKey || event.metaKey;
      if (command && event.key === "k") return openSearch;
      if (command && event.shiftKey && event.key.toLowerCase() === "o") return () => navigate(newChat());
      return !typing && event.key === "?" ? openShortcuts : undefined;
    };
    const handleKeyDown = (event: KeyboardEvent) => {
      const action = actionFor(event);
      if (!action) return;
      event.preventDefault();
      action();
    };
    window.addEventListener("keydown", handleKeyDown);
    return () => window.removeEventListener("keydown", handleKeyDown);
  }, [openSearch, openShortcuts]);
}
