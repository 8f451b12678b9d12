// The frame around every view.

import { MenuOutlined } from "@ant-design/icons";
import { Alert, Badge, Button, Drawer, Spin } from "antd";
import { lazy, Suspense, useEffect, useState } from "react";
import Chat from "../chat/chat";
import { useHouse } from "../state/use";
import type { Look } from "../theme";
import { Inside } from "./link";
import { Mark } from "./mark";
import { go, newChat, type Route, useRoute } from "./route";
import { Sidebar } from "./sidebar";

const Approvals = lazy(() => import("../views/approvals"));
const Agents = lazy(() => import("../views/agents"));
const Jobs = lazy(() => import("../views/jobs"));
const Audit = lazy(() => import("../views/audit"));
const Runs = lazy(() => import("../views/runs"));
const Usage = lazy(() => import("../views/usage"));
const Search = lazy(() => import("./search"));
const Keys = lazy(() => import("./keys"));

export function Shell({ look, onLook }: { look: Look; onLook: (look: Look) => void }) {
  const route = useRoute();
  const [drawer, setDrawer] = useState(false);
  const [search, setSearch] = useState(false);
  const [keys, setKeys] = useState(false);
  useEffect(() => {
    if (route.view === "chat" && !route.id) go(newChat(), true);
  }, [route]);
  useShortcuts(
    () => setSearch(true),
    () => setKeys(true),
  );
  const side = { look, onLook, onSearch: () => setSearch(true), onHelp: () => setKeys(true) };
  return (
    <div className="shell">
      <a className="skip" href="#main">
        To the content
      </a>
      <aside className="side">
        <Sidebar {...side} />
      </aside>
      <Drawer
        open={drawer}
        onClose={() => setDrawer(false)}
        placement="left"
        size={300}
        closable={false}
        styles={{ body: { padding: 0 } }}
        aria-label="Menu"
      >
        <Sidebar {...side} onPick={() => setDrawer(false)} />
      </Drawer>
      <main id="main" tabIndex={-1}>
        <TopBar onMenu={() => setDrawer(true)} />
        <Trouble />
        <Suspense fallback={<Spin className="middle" />}>
          <ViewOf route={route} />
        </Suspense>
      </main>
      <Suspense>
        {search && <Search onClose={() => setSearch(false)} />}
        {keys && <Keys onClose={() => setKeys(false)} />}
      </Suspense>
    </div>
  );
}

function ViewOf({ route }: { route: Route }) {
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
      return <Audit />;
    case "runs":
      return <Runs id={route.id} />;
    case "usage":
      return <Usage />;
  }
}

function TopBar({ onMenu }: { onMenu: () => void }) {
  const { approvals } = useHouse();
  return (
    <header className="topbar">
      <Badge dot={approvals.length > 0} color="var(--amber-dot)" offset={[-6, 6]}>
        <Button type="text" icon={<MenuOutlined aria-hidden />} aria-label="Menu" onClick={onMenu} />
      </Badge>
      <Inside to={{ view: "chat", id: "" }} className="home">
        <Mark size={22} /> Atlas
      </Inside>
      {approvals.length > 0 && (
        <Inside to={{ view: "approvals", id: "" }} className="open-questions">
          {approvals.length === 1 ? "One question" : `${approvals.length} questions`}
        </Inside>
      )}
    </header>
  );
}

function Trouble() {
  const { link, everOnline, restarting } = useHouse();
  const [late, setLate] = useState(false);
  const off = link !== "online";
  useEffect(() => {
    if (!off) return setLate(false);
    const timer = setTimeout(() => setLate(true), everOnline ? 400 : 2500);
    return () => clearTimeout(timer);
  }, [off, everOnline]);
  if (!off || !late) return null;
  const words = restarting
    ? "The gateway restarts."
    : everOnline
      ? "The connection was lost."
      : "The gateway cannot be reached.";
  return <Alert banner type="warning" role="status" title={`${words} Trying again; nothing you wrote is lost.`} />;
}

function useShortcuts(search: () => void, keys: () => void): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const typing = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      const command = event.ctrlKey || event.metaKey;
      const act =
        command && event.key === "k"
          ? search
          : command && event.shiftKey && event.key.toLowerCase() === "o"
            ? () => go(newChat())
            : !typing && event.key === "?"
              ? keys
              : undefined;
      if (!act) return;
      event.preventDefault();
      act();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [search, keys]);
}
