/// <reference types="vitest/config" />
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";
import { antdStyles } from "./antd-styles.ts";
import { compress } from "./compress.ts";

// Few files, because a browser takes longer to request many small files than to read them: what the first view needs,
// antd's components that lie over others, and its other components. Views, diagrams and formulas have their own files.
const groups = [
  { name: "app", tags: ["$initial" as const], priority: 3 },
  { name: "overlays", test: /[\\/]antd[\\/]es[\\/](dropdown|menu|modal|popover|tooltip)[\\/]/, priority: 2 },
  { name: "components", test: /[\\/](antd|@ant-design|@rc-component)[\\/]/, priority: 1 },
];

// The development server forwards WebSocket connections and API requests to the gateway at `ATLAS`.
const gateway = process.env.ATLAS ?? "http://127.0.0.1:18789";

export default defineConfig({
  plugins: [react(), antdStyles(), compress()],
  build: {
    outDir: "dist",
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 1200,
    modulePreload: { polyfill: false },
    rolldownOptions: { output: { codeSplitting: { groups } } },
  },
  server: {
    proxy: Object.fromEntries(
      ["/ws", "/api"].map((path) => [
        path,
        { target: gateway, ws: path === "/ws", changeOrigin: true, headers: { origin: gateway } },
      ]),
    ),
  },
  // One thread for all files: to import React and antd again for each takes longer than the tests.
  test: { environment: "node", include: ["src/**/*.test.ts"], pool: "threads", maxWorkers: 1, isolate: false },
});
