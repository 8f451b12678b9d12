// Sidebar: search, navigation, sessions, user menu and settings. The navigation never changes its order or its height.

import { Button } from "antd";
import { Icon, type IconName, Logo } from "../components/icons";
import { RouteLink } from "../components/link";
import { isGuest, useAppState } from "../state/hooks";
import type { Principal } from "../wire";
import { navigate, newChat, useRoute, type View } from "./router";
import { SessionList } from "./session-list";
import { UserMenu } from "./user-menu";

interface Entry {
  /** The first view is the one that the entry opens. */
  views: readonly [View, ...View[]];
  name: string;
  icon: IconName;
  scope?: Principal["scopes"][number];
  /** Whether guests, who have access to their own sessions only, see it. */
  guests?: boolean;
}

const NAVIGATION: Entry[] = [
  { views: ["approvals"], name: "Approvals", icon: "shield", scope: "approve", guests: true },
  { views: ["jobs", "schedules"], name: "Jobs", icon: "jobs", guests: true },
  { views: ["agents"], name: "Agents", icon: "agent" },
  { views: ["knowledge", "memories"], name: "Knowledge", icon: "book", guests: true },
  { views: ["runs", "audit", "usage", "evaluations"], name: "Activity", icon: "activity", guests: true },
];

export interface SidebarProps {
  onSearch: () => void;
  onShortcuts: () => void;
  onSignOut: () => void;
  onNavigate?: () => void;
}

export function Sidebar({ onSearch, onShortcuts, onSignOut, onNavigate }: SidebarProps) {
  const { approvals, principal } = useAppState();
  const route = useRoute();
  const entries = NAVIGATION.filter(
    ({ scope, guests }) =>
      !principal || ((!scope || principal.scopes.includes(scope)) && (guests || !isGuest(principal))),
  );
  return (
    <div className="sidebar">
      <header>
        <Logo />
        <strong>Atlas</strong>
        <span className="spacer" />
        <Button
          type="text"
          icon={<Icon name="search" />}
          aria-label="Search"
          title="Search (Ctrl K)"
          onClick={() => {
            onNavigate?.();
            onSearch();
          }}
        />
      </header>
      <Button
        icon={<Icon name="plus" />}
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
        {entries.map(({ views, name, icon }) => {
          const active = views.includes(route.view);
          return (
            <RouteLink
              key={name}
              to={{ view: views[0], id: "" }}
              className={active ? "active" : undefined}
              aria-current={active ? "page" : undefined}
              onClick={onNavigate}
            >
              <Icon name={icon} /> {name}
              {name === "Approvals" && approvals.length > 0 && (
                <span className="count" title={`${approvals.length} pending`}>
                  {approvals.length}
                </span>
              )}
            </RouteLink>
          );
        })}
      </nav>
      <SessionList onNavigate={onNavigate} />
      <footer>
        <UserMenu
          onShortcuts={() => {
            onNavigate?.();
            onShortcuts();
          }}
          onSignOut={onSignOut}
        />
        <RouteLink
          to={{ view: "settings", id: "" }}
          className={route.view === "settings" ? "icon-link active" : "icon-link"}
          aria-current={route.view === "settings" ? "page" : undefined}
          aria-label="Settings"
          title="Settings"
          onClick={onNavigate}
        >
          <Icon name="gear" />
        </RouteLink>
      </footer>
    </div>
  );
}
