/// <reference types="vitest/config" />
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";
import { compress } from "./compress.ts";

// The development server forwards WebSocket connections and API requests to the gateway at `ATLAS`.
const gateway = process.env.ATLAS ?? "http://127.0.0.1:18789";

export default defineConfig({
  plugins: [react(), compress()],
  build: { outDir: "dist", assetsInlineLimit: 0, chunkSizeWarningLimit: 1200, modulePreload: { polyfill: false } },
  server: {
    proxy: Object.fromEntries(
      ["/ws", "/api"].map((path) => [
        path,
        { target: gateway, ws: path === "/ws", changeOrigin: true, headers: { origin: gateway } },
      ]),
    ),
  },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
