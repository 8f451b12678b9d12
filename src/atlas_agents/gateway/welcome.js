// Says how the gateway is, again and again; asks nobody but the gateway itself.
const state = document.getElementById("state");
const example = document.getElementById("example");
example.textContent = example.textContent.replace("localhost:18789", location.host);

async function look() {
  try {
    const [ready, health] = await Promise.all([fetch("/readyz"), fetch("/health")]);
    const { status } = await ready.json();
    const { uptime } = await health.json();
    state.textContent = ready.ok ? `Running for ${span(uptime)}.` : `Not ready: ${status}.`;
    state.className = ready.ok ? "well" : "ill";
  } catch {
    state.textContent = "Not reachable.";
    state.className = "ill";
  }
}

function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

look();
setInterval(look, 5000);
