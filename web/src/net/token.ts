// The token, kept for this tab only. It comes in the fragment of the address, which is never sent to a server, or
// from another open tab of this very page.

const KEY = "atlas.token";
const CHANNEL = "atlas.token";

/** The token in a fragment such as `#token=…`, or null. */
export function tokenIn(fragment: string): string | null {
  const token = new URLSearchParams(fragment.replace(/^#/, "")).get("token");
  return token?.trim() || null;
}

/** Take the token out of the address bar and keep it; else the one that is kept. */
export function takeToken(): string | null {
  const given = tokenIn(location.hash);
  if (given) {
    history.replaceState(history.state, "", location.pathname + location.search);
    keepToken(given);
  }
  return given ?? sessionStorage.getItem(KEY);
}

export function keepToken(token: string): void {
  sessionStorage.setItem(KEY, token);
}

export function forgetToken(): void {
  sessionStorage.removeItem(KEY);
}

/** Give the token to other tabs of this page that ask; the browser lets nobody else hear. */
export function shareToken(): void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = (event: MessageEvent<unknown>) => {
    const token = sessionStorage.getItem(KEY);
    if (event.data === "ask" && token) channel.postMessage({ token });
  };
}

/** Ask the other tabs, for a moment. */
export function askTabs(patience = 250): Promise<string | null> {
  return new Promise((resolve) => {
    const channel = new BroadcastChannel(CHANNEL);
    const done = (token: string | null) => {
      channel.close();
      resolve(token);
    };
    const timer = setTimeout(() => done(null), patience);
    channel.onmessage = (event: MessageEvent<{ token?: unknown }>) => {
      if (typeof event.data?.token !== "string") return;
      clearTimeout(timer);
      done(event.data.token);
    };
    channel.postMessage("ask");
  });
}
