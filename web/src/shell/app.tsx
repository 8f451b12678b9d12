// The whole page: first the door, then the house.

import { App as AntApp, ConfigProvider } from "antd";
import { useEffect, useMemo, useState, useSyncExternalStore } from "react";
import { askTabs, forgetToken, keepToken, shareToken, takeToken } from "../net/token";
import { Atlas } from "../state/atlas";
import { AtlasContext } from "../state/use";
import { keepLook, keptLook, type Look, themeOf } from "../theme";
import { Door } from "./door";
import { Shell } from "./shell";

export function App() {
  const [look, setLook] = useState(keptLook);
  const systemDark = useMedia("(prefers-color-scheme: dark)");
  const still = useMedia("(prefers-reduced-motion: reduce)");
  const dark = look === "system" ? systemDark : look === "dark";
  useEffect(() => {
    document.documentElement.dataset.look = dark ? "dark" : "light";
  }, [dark]);
  const theme = useMemo(() => themeOf(dark, still), [dark, still]);
  return (
    <ConfigProvider theme={theme} button={{ autoInsertSpace: false }}>
      <AntApp>
        <House
          look={look}
          onLook={(next) => {
            keepLook(next);
            setLook(next);
          }}
        />
      </AntApp>
    </ConfigProvider>
  );
}

function House({ look, onLook }: { look: Look; onLook: (look: Look) => void }) {
  const [token, setToken] = useState(takeToken);
  const [asked, setAsked] = useState(token !== null);
  const [refused, setRefused] = useState(false);
  useEffect(() => {
    shareToken();
    const changed = () => setToken((before) => takeToken() ?? before);
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => {
    if (asked) return;
    void askTabs().then((found) => {
      if (found) {
        keepToken(found);
        setToken(found);
      }
      setAsked(true);
    });
  }, [asked]);
  const atlas = useMemo(() => (token ? new Atlas(token) : null), [token]);
  useEffect(() => {
    if (!atlas) return;
    atlas.start();
    const look = () => document.visibilityState === "visible" && atlas.hurry();
    const watch = atlas.house.subscribe(() => {
      if (atlas.house.current.link !== "refused") return;
      forgetToken();
      setRefused(true);
      setToken(null);
    });
    window.addEventListener("online", atlas.hurry);
    document.addEventListener("visibilitychange", look);
    return () => {
      watch();
      window.removeEventListener("online", atlas.hurry);
      document.removeEventListener("visibilitychange", look);
      atlas.end();
    };
  }, [atlas]);
  if (!asked) return null;
  if (!atlas)
    return (
      <Door
        refused={refused}
        onToken={(given) => {
          keepToken(given);
          setRefused(false);
          setToken(given);
        }}
      />
    );
  return (
    <AtlasContext value={atlas}>
      <Shell look={look} onLook={onLook} />
    </AtlasContext>
  );
}

function useMedia(query: string): boolean {
  return useSyncExternalStore(
    (listener) => {
      const media = matchMedia(query);
      media.addEventListener("change", listener);
      return () => media.removeEventListener("change", listener);
    },
    () => matchMedia(query).matches,
  );
}
