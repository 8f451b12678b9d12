// Root component: theme, login, and the client that the rest of the page uses.

import { App as AntApp, ConfigProvider } from "antd";
import { useEffect, useMemo, useState } from "react";
import { clearToken, loadToken, requestTokenFromTabs, saveToken, shareToken } from "../net/token";
import { AtlasClient } from "../state/client";
import { ClientContext, useMediaQuery } from "../state/hooks";
import { usePreferences } from "../state/preferences";
import { themeConfig } from "../theme";
import { Layout } from "./layout";
import { Login } from "./login";

export function App() {
  const { theme: mode, density } = usePreferences();
  const systemDark = useMediaQuery("(prefers-color-scheme: dark)");
  const reducedMotion = useMediaQuery("(prefers-reduced-motion: reduce)");
  const dark = mode === "system" ? systemDark : mode === "dark";
  useEffect(() => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.documentElement.dataset.density = density;
  }, [dark, density]);
  const theme = useMemo(() => themeConfig(dark, reducedMotion, density === "compact"), [dark, reducedMotion, density]);
  return (
    <ConfigProvider theme={theme} button={{ autoInsertSpace: false }}>
      <AntApp>
        <AuthenticatedApp />
      </AntApp>
    </ConfigProvider>
  );
}

function AuthenticatedApp() {
  const [token, setToken] = useState(loadToken);
  const [searched, setSearched] = useState(token !== null);
  const [rejected, setRejected] = useState(false);
  useEffect(() => {
    shareToken();
    const handleHashChange = () => setToken((previous) => loadToken() ?? previous);
    window.addEventListener("hashchange", handleHashChange);
    return () => window.removeEventListener("hashchange", handleHashChange);
  }, []);
  useEffect(() => {
    if (searched) return;
    void requestTokenFromTabs().then((found) => {
      if (found) {
        saveToken(found);
        setToken(found);
      }
      setSearched(true);
    });
  }, [searched]);
  const client = useMemo(() => (token ? new AtlasClient(token) : null), [token]);
  useEffect(() => {
    if (!client) return;
    client.connect();
    const handleVisibility = () => document.visibilityState === "visible" && client.wake();
    const unsubscribe = client.state.subscribe(() => {
      if (client.state.current.status !== "unauthorized") return;
      clearToken();
      setRejected(true);
      setToken(null);
    });
    window.addEventListener("online", client.wake);
    document.addEventListener("visibilitychange", handleVisibility);
    return () => {
      unsubscribe();
      window.removeEventListener("online", client.wake);
      document.removeEventListener("visibilitychange", handleVisibility);
      client.close();
    };
  }, [client]);
  const signOut = () => {
    clearToken();
    setToken(null);
  };
  const login = (entered: string) => {
    saveToken(entered);
    setRejected(false);
    setToken(entered);
  };
  if (!searched) return null;
  if (!client) return <Login rejected={rejected} onLogin={login} />;
  return (
    <ClientContext value={client}>
      <Layout onSignOut={signOut} />
    </ClientContext>
  );
}
