// Root component: theme, sign-in, and the client that the rest of the page uses.

import { ConfigProvider } from "antd";
import { useCallback, useEffect, useMemo, useState } from "react";
import { FeedbackOutlet } from "../components/feedback";
import {
  inviteFromFragment,
  signIn,
  signOut,
  takeInviteFromAddress,
  takeTokenFromAddress,
  tokenFromFragment,
} from "../net/sign-in";
import { AtlasClient } from "../state/client";
import { ClientContext, useMediaQuery } from "../state/hooks";
import { usePreferences } from "../state/preferences";
import { themeConfig } from "../theme";
import { Layout } from "./layout";
import { Invitation, Login, type SignedOut } from "./login";

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
      <AuthenticatedApp />
      <FeedbackOutlet />
    </ConfigProvider>
  );
}

/** The cookie of this browser either signs it in, or the gateway refuses the connection and the user signs in. */
function AuthenticatedApp() {
  const [client, setClient] = useState<AtlasClient | null>(null);
  const [signedOut, setSignedOut] = useState<SignedOut | null | undefined>(undefined);
  const [invite, setInvite] = useState<string | null>(null);
  const connect = useCallback(() => {
    setSignedOut(undefined);
    setInvite(null);
    setClient(new AtlasClient());
  }, []);
  useEffect(() => {
    const start = async () => {
      const code = takeInviteFromAddress();
      if (code) {
        setClient(null);
        return setInvite(code);
      }
      const token = takeTokenFromAddress();
      const failure = token ? await signIn(token, true) : "";
      if (!failure) return connect();
      setClient(null);
      setSignedOut({ type: "error", text: failure });
    };
    const handleHashChange = () => {
      if (tokenFromFragment(location.hash) || inviteFromFragment(location.hash)) void start();
    };
    void start();
    window.addEventListener("hashchange", handleHashChange);
    return () => window.removeEventListener("hashchange", handleHashChange);
  }, [connect]);
  useEffect(() => {
    if (!client) return;
    client.connect();
    const handleVisibility = () => document.visibilityState === "visible" && client.wake();
    const unsubscribe = client.state.subscribe(() => {
      const { status, wasOnline } = client.state.current;
      if (status !== "unauthorized") return;
      setClient(null);
      setSignedOut(wasOnline ? { type: "error", text: "Your access was revoked. Sign in again." } : null);
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
  const leave = () => {
    setClient(null);
    signOut().then(
      () => setSignedOut({ type: "info", text: "You’re signed out." }),
      () => setSignedOut({ type: "error", text: `Can’t reach the gateway at ${location.host}.` }),
    );
  };
  if (invite) return <Invitation code={invite} onSignedIn={connect} />;
  if (signedOut !== undefined) return <Login notice={signedOut ?? undefined} onSignedIn={connect} />;
  if (!client) return null;
  return (
    <ClientContext value={client}>
      <Layout onSignOut={leave} />
    </ClientContext>
  );
}
