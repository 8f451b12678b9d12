// Shows the state of the gateway and refreshes it every five seconds.
const state = document.getElementById("state");
const example = document.getElementById("example");
example.textContent = example.textContent.replace("localhost:18789", location.host);

async function refresh() {
  try {
    const [ready, health] = await Promise.all([fetch("/readyz"), fetch("/health")]);
    const { status } = await ready.json();
    const { uptime } = await health.json();
    state.textContent = ready.ok ? `Running for ${formatDuration(uptime)}.` : `Not ready: ${status}.`;
    state.className = ready.ok ? "ok" : "error";
  } catch {
    state.textContent = "Not reachable.";
    state.className = "error";
  }
}

function formatDuration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

refresh();
setInterval(refresh, 5000);
