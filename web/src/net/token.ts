// The access token, stored for this tab only. It comes from the URL fragment, which browsers never send to a server,
// or from another open tab of this page.

const STORAGE_KEY = "atlas.token";
const CHANNEL = "atlas.token";

/** Return the token in a fragment such as `#token=…`, or null. */
export function tokenFromFragment(fragment: string): string | null {
  const token = new URLSearchParams(fragment.replace(/^#/, "")).get("token");
  return token?.trim() || null;
}

/** Move a token from the address bar into storage, and return the stored token. */
export function loadToken(): string | null {
  const token = tokenFromFragment(location.hash);
  if (token) {
    history.replaceState(history.state, "", location.pathname + location.search);
    saveToken(token);
  }
  return token ?? sessionStorage.getItem(STORAGE_KEY);
}

export function saveToken(token: string): void {
  sessionStorage.setItem(STORAGE_KEY, token);
}

export function clearToken(): void {
  sessionStorage.removeItem(STORAGE_KEY);
}

/** Answer token requests of other tabs. A BroadcastChannel reaches only pages of the same origin. */
export function shareToken(): void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = (event: MessageEvent<unknown>) => {
    const token = sessionStorage.getItem(STORAGE_KEY);
    if (event.data === "ask" && token) channel.postMessage({ token });
  };
}

/** Ask other tabs for the token; resolve with null if none answers in time. */
export function requestTokenFromTabs(timeoutMs = 250): Promise<string | null> {
  return new Promise((resolve) => {
    const channel = new BroadcastChannel(CHANNEL);
    const finish = (token: string | null) => {
      channel.close();
      resolve(token);
    };
    const timer = setTimeout(() => finish(null), timeoutMs);
    channel.onmessage = (event: MessageEvent<{ token?: unknown }>) => {
      if (typeof event.data?.token !== "string") return;
      clearTimeout(timer);
      finish(event.data.token);
    };
    channel.postMessage("ask");
  });
}
