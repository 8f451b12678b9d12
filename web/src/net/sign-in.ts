// Signing in and out. The gateway exchanges the access token for a cookie that scripts cannot read, so the page does not
// keep the token. A link can carry it in the URL fragment, which browsers never send to a server.

/** Return the token in a fragment such as `#token=…`, or null. */
export function tokenFromFragment(fragment: string): string | null {
  const token = new URLSearchParams(fragment.replace(/^#/, "")).get("token");
  return token?.trim() || null;
}

/** Return the code of an invitation in a fragment such as `#invite=…`, or null. */
export function inviteFromFragment(fragment: string): string | null {
  return new URLSearchParams(fragment.replace(/^#/, "")).get("invite")?.trim() || null;
}

/** Remove the code of an invitation from the address bar and return it. */
export function takeInviteFromAddress(): string | null {
  const code = inviteFromFragment(location.hash);
  if (code) history.replaceState(history.state, "", location.pathname + location.search);
  return code;
}

export interface Accepted {
  user: string;
  token: string;
}

/** Exchange the code of an invitation for a token. Returns why that failed as a text. */
export async function acceptInvitation(code: string): Promise<Accepted | string> {
  try {
    const response = await fetch("/api/invitation", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
    });
    if (response.ok) return (await response.json()) as Accepted;
    if (response.status === 401) return "This invitation was used or has expired. Ask for a new one.";
    return describeFailure(response.status, response.headers.get("Retry-After"));
  } catch {
    return `Can’t reach the gateway at ${location.host}.`;
  }
}

/** Remove a token from the address bar and return it. */
export function takeTokenFromAddress(): string | null {
  const token = tokenFromFragment(location.hash);
  if (token) history.replaceState(history.state, "", location.pathname + location.search);
  return token;
}

/** Exchange a token for the cookie of this browser. Returns why that failed, or an empty string. */
export async function signIn(token: string, remember: boolean): Promise<string> {
  try {
    const response = await fetch("/api/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token, remember }),
    });
    return response.ok ? "" : describeFailure(response.status, response.headers.get("Retry-After"));
  } catch {
    return `Can’t reach the gateway at ${location.host}.`;
  }
}

export function describeFailure(status: number, retryAfter: string | null): string {
  if (status === 401) return "That token isn’t valid.";
  if (status === 429) return `Too many attempts. Try again in ${retryAfter ?? 60} s.`;
  return `The gateway refused to sign you in (${status}).`;
}

/** Delete the cookie. The gateway also closes the connections of this browser. */
export async function signOut(): Promise<void> {
  await fetch("/api/session", { method: "DELETE" });
}
