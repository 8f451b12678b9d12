// Settings: one tab per topic. A tab is a file `settings-<id>.tsx` beside this one; it is loaded when it is opened.

import { SettingOutlined } from "@ant-design/icons";
import { Spin } from "antd";
import { type ComponentType, lazy, Suspense, useEffect, useRef } from "react";
import { RouteLink } from "../components/link";
import { navigate } from "../layout/router";
import { useAppState } from "../state/hooks";
import { EmptyState, View } from "./view";

interface Tab {
  id: string;
  name: string;
  /** Personal tabs are open to everyone; the others need the scope `admin`. */
  personal?: boolean;
}

const TABS: Tab[] = [
  { id: "models", name: "Models" },
  { id: "mcp", name: "MCP servers" },
  { id: "permissions", name: "Permissions" },
  { id: "people", name: "People" },
  { id: "channels", name: "Channels" },
  { id: "operations", name: "Operations" },
  { id: "appearance", name: "Appearance", personal: true },
  { id: "notifications", name: "Notifications", personal: true },
  { id: "devices", name: "Devices", personal: true },
];

const FILES = import.meta.glob<{ default: ComponentType }>("./settings-*.tsx");
const PAGES = new Map(
  TABS.flatMap(({ id }) => {
    const load = FILES[`./settings-${id}.tsx`];
    return load ? [[id, lazy(load)] as const] : [];
  }),
);

export default function Settings({ id }: { id: string }) {
  const { principal } = useAppState();
  const admin = principal?.scopes.includes("admin") ?? false;
  const tabs = TABS.filter((tab) => PAGES.has(tab.id) && (admin || tab.personal));
  const selected = tabs.find((tab) => tab.id === id);
  const first = tabs[0]?.id;
  useEffect(() => {
    if (principal && !selected && first) navigate({ view: "settings", id: first }, true);
  }, [principal, selected, first]);
  const strip = useRef<HTMLElement>(null);
  const shown = selected?.id;
  useEffect(() => {
    if (shown) strip.current?.querySelector("[aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  }, [shown]);
  const Page = selected && PAGES.get(selected.id);
  return (
    <View title="Settings" description="Changes apply at once; no restart is needed.">
      <nav className="tabs settings-tabs" ref={strip} aria-label="Settings">
        {tabs.map((tab) => (
          <RouteLink
            key={tab.id}
            to={{ view: "settings", id: tab.id }}
            aria-current={tab.id === id ? "page" : undefined}
          >
            {tab.name}
          </RouteLink>
        ))}
      </nav>
      {principal && !first && (
        <EmptyState icon={<SettingOutlined aria-hidden />} title="Nothing to set here">
          Your token does not have the “admin” scope.
        </EmptyState>
      )}
      {Page && (
        <section className="stack" aria-label={selected.name}>
          <Suspense fallback={<Spin className="centered" />}>
            <Page />
          </Suspense>
        </section>
      )}
    </View>
  );
}
