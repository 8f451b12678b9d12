// Page layout: sidebar, top bar on small screens, connection banner and the current view.

import { Alert, Button, Spin } from "antd";
import { type ComponentType, lazy, type ReactNode, Suspense, useEffect, useRef, useState } from "react";
import Chat from "../chat/chat";
import { Icon } from "../components/icons";
import { RouteLink } from "../components/link";
import { useAppState, useClient, useSessionName } from "../state/hooks";
import { singleKey } from "../state/shortcuts";
import { Announcements } from "./announcements";
import { NotFound, SearchContext } from "./not-found";
import { useNotifications } from "./notifications";
import { navigate, newChat, type Route, useRoute, type View } from "./router";
import { Sidebar } from "./sidebar";

interface LazyView {
  /** Name in the top bar and in the title of the tab. */
  name: string;
  load: ComponentType<{ id: string }>;
}

/** The views that are loaded when they are opened. */
const VIEWS: Record<Exclude<View, "chat" | "missing">, LazyView> = {
  approvals: { name: "Approvals", load: lazy(() => import("../views/approvals")) },
  jobs: { name: "Jobs", load: lazy(() => import("../views/jobs")) },
  schedules: { name: "Schedules", load: lazy(() => import("../views/schedules")) },
  agents: { name: "Agents", load: lazy(() => import("../views/agents")) },
  knowledge: { name: "Knowledge", load: lazy(() => import("../views/knowledge")) },
  memories: { name: "Memories", load: lazy(() => import("../views/memories")) },
  runs: { name: "Runs", load: lazy(() => import("../views/runs")) },
  audit: { name: "Audit log", load: lazy(() => import("../views/audit")) },
  usage: { name: "Usage", load: lazy(() => import("../views/usage")) },
  evaluations: { name: "Evaluations", load: lazy(() => import("../views/evaluations")) },
  settings: { name: "Settings", load: lazy(() => import("../views/settings")) },
  setup: { name: "Set up", load: lazy(() => import("../views/setup")) },
};
const FeedbackHost = lazy(() => import("../components/feedback-host"));
const SearchDialog = lazy(() => import("./search"));
const ShortcutsDialog = lazy(() => import("./shortcuts"));

export function Layout({ onSignOut }: { onSignOut: () => void }) {
  const route = useRoute();
  const [drawerOpen, setDrawerOpen] = useState(false);
  const [searchOpen, setSearchOpen] = useState(false);
  const [shortcutsOpen, setShortcutsOpen] = useState(false);
  useNotifications();
  useMarkRead();
  useEffect(() => {
    if (route.view === "chat" && !route.id) navigate(newChat(), true);
  }, [route]);
  const openSearch = () => setSearchOpen(true);
  const openShortcuts = () => setShortcutsOpen(true);
  useShortcuts(openSearch, openShortcuts);
  const sidebar = { onSearch: openSearch, onShortcuts: openShortcuts, onSignOut };
  return (
    <SearchContext value={openSearch}>
      <div className="layout">
        <a className="skip-link" href="#main">
          Skip to content
        </a>
        <aside>
          <Sidebar {...sidebar} />
        </aside>
        {drawerOpen && (
          <Drawer onClose={() => setDrawerOpen(false)}>
            <Sidebar {...sidebar} onNavigate={() => setDrawerOpen(false)} />
          </Drawer>
        )}
        <main id="main" tabIndex={-1}>
          <TopBar route={route} onMenu={() => setDrawerOpen(true)} />
          <ConnectionBanner />
          <Suspense fallback={<Spin className="centered" />}>
            <CurrentView route={route} />
          </Suspense>
        </main>
        <Announcements />
        <Suspense>
          {searchOpen && <SearchDialog onClose={() => setSearchOpen(false)} />}
          {shortcutsOpen && <ShortcutsDialog onClose={() => setShortcutsOpen(false)} />}
        </Suspense>
      </div>
    </SearchContext>
  );
}

function CurrentView({ route: { view, id, isNew = false } }: { route: Route }) {
  if (view === "chat") return id ? <Chat id={id} isNew={isNew} /> : null;
  if (view === "missing") return <NotFound what="page" />;
  const Loaded = VIEWS[view].load;
  return (
    <FeedbackHost>
      <Loaded id={id} />
    </FeedbackHost>
  );
}

/** Return the name of what is shown, and set the title of the browser tab. */
function useTitle({ view, id }: Route): string {
  const chat = useSessionName(id) || "New chat";
  const title = view === "chat" ? chat : view === "missing" ? "Page not found" : VIEWS[view].name;
  const { approvals, unread } = useAppState();
  useEffect(() => {
    const count = approvals.length ? `(${approvals.length}) ` : unread.size ? "• " : "";
    document.title = `${count}${title} – Atlas`;
  }, [title, approvals.length, unread.size]);
  return title;
}

/** An answer that was finished in a hidden tab is read once the tab is shown. */
function useMarkRead(): void {
  const client = useClient();
  useEffect(() => {
    const handleVisible = () => {
      if (!document.hidden) client.markRead(client.session.current.key);
    };
    document.addEventListener("visibilitychange", handleVisible);
    return () => document.removeEventListener("visibilitychange", handleVisible);
  }, [client]);
}

/** The sidebar on small screens. A native dialog keeps the focus inside, closes on Escape and returns the focus. */
function Drawer({ onClose, children }: { onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    element?.showModal();
    return () => element?.close();
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: a click beside the dialog closes it; Escape does the same
    <dialog
      ref={dialog}
      className="drawer"
      aria-label="Menu"
      onClose={onClose}
      onClick={(event) => event.target === event.currentTarget && onClose()}
    >
      {children}
    </dialog>
  );
}

function TopBar({ route, onMenu }: { route: Route; onMenu: () => void }) {
  const title = useTitle(route);
  const { approvals } = useAppState();
  const count = approvals.length;
  return (
    <header className="topbar">
      <Button type="text" icon={<Icon name="menu" />} aria-label="Menu" onClick={onMenu} />
      <span className="title">{title}</span>
      <RouteLink
        to={{ view: "approvals", id: "" }}
        className="icon-link"
        aria-label={count === 1 ? "1 approval" : `${count} approvals`}
      >
        <Icon name="bell" />
        {count > 0 && <span className="count">{count}</span>}
      </RouteLink>
      <Button type="text" icon={<Icon name="plus" />} aria-label="New chat" onClick={() => navigate(newChat())} />
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
    ? "The gateway is restarting. Your messages will be sent when it’s back."
    : wasOnline
      ? "Disconnected. Reconnecting…"
      : `Can’t reach the gateway at ${location.host}. Reconnecting…`;
  return <Alert banner type="warning" role="status" title={problem} />;
}

function useShortcuts(openSearch: () => void, openShortcuts: () => void): void {
  useEffect(() => {
    const actionFor = (event: KeyboardEvent): (() => void) | undefined => {
      const command = event.ctrlKey || event.metaKey;
      if (command && event.key === "k") return openSearch;
      if (command && event.shiftKey && event.key.toLowerCase() === "o") return () => navigate(newChat());
      return singleKey(event) === "?" ? openShortcuts : undefined;
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
