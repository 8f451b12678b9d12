// Shows which app asks for access, after sign-in, and sends the user's decision.
const SCOPES = {
  read: "see your agents, their tools and documents",
  write: "send messages to your agents and call their tools",
  approve: "approve tool calls for you",
};
const ENABLE_AFTER_MS = 700;
const element = (id) => document.getElementById(id);
const query = location.search.slice(1);
let timer;

async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const found = await answer.json().catch(() => ({}));
  return { status: answer.status, found, problem: answer.ok ? "" : (found.error?.message ?? `status ${answer.status}`) };
}

function show(id, problem = "") {
  for (const each of ["sign-in", "consent"]) element(each).hidden = each !== id;
  element("error").hidden = !problem;
  element("error").textContent = problem;
}

// A click that was meant for a page which another site has just moved away must not allow anything.
function armAllow() {
  clearTimeout(timer);
  element("allow").disabled = true;
  if (document.visibilityState === "visible") timer = setTimeout(() => (element("allow").disabled = false), ENABLE_AFTER_MS);
}

async function load() {
  const { status, found, problem } = await post("/api/consent/request", { query });
  if (status === 401) return show("sign-in");
  if (problem) return show(status === 403 ? "sign-in" : "", problem);
  for (const id of ["client", "host", "user"]) element(id).textContent = found[id];
  element("scopes").replaceChildren(
    ...found.scopes.map((scope) => {
      const item = document.createElement("li");
      item.textContent = SCOPES[scope];
      return item;
    }),
  );
  show("consent");
  armAllow();
}

async function decide(decision) {
  const { status, found, problem } = await post("/api/consent", { query, decision });
  if (status === 401) return show("sign-in");
  if (problem) return show("consent", problem);
  location.replace(found.redirect);
}

element("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { problem } = await post("/api/session", { token: element("token").value.trim() });
  element("token").value = "";
  if (problem) show("sign-in", problem);
  else await load();
});
element("allow").addEventListener("click", () => decide("allow"));
element("deny").addEventListener("click", () => decide("deny"));
for (const name of ["focus", "blur"]) window.addEventListener(name, armAllow);
document.addEventListener("visibilitychange", armAllow);
load();
