// Theme of antd's components. The style sheets in styles/ define the same colours for our own elements.

import { type ThemeConfig, theme } from "antd";

const FONT = `system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", Arial, sans-serif`;
const CODE = `ui-monospace, SFMono-Regular, "SF Mono", Menlo, Consolas, "Noto Sans Mono", "DejaVu Sans Mono", monospace`;

const LIGHT = {
  colorPrimary: "#1f6f5c",
  colorInfo: "#1f6f5c",
  colorLink: "#1b6351",
  colorSuccess: "#2f855a",
  colorWarning: "#b7791f",
  colorError: "#c2453d",
  colorTextBase: "#1d2421",
  colorTextPlaceholder: "#69736e",
  colorBgBase: "#ffffff",
  colorBgLayout: "#f6f7f5",
  colorBorder: "#d9ddd9",
  colorBorderSecondary: "#e8ebe8",
};
const DARK = {
  colorPrimary: "#4fb396",
  colorInfo: "#4fb396",
  colorLink: "#6cc7ac",
  colorSuccess: "#5bbf8a",
  colorWarning: "#d9a441",
  colorError: "#f48d85",
  colorTextBase: "#e7ebe8",
  colorTextPlaceholder: "#8d9791",
  colorBgBase: "#151816",
  colorBgContainer: "#191d1b",
  colorBgElevated: "#212623",
  colorBgLayout: "#111412",
  colorBorder: "#38403b",
  colorBorderSecondary: "#292f2b",
};

export function themeConfig(dark: boolean, reducedMotion: boolean): ThemeConfig {
  return {
    algorithm: dark ? theme.darkAlgorithm : theme.defaultAlgorithm,
    hashed: false,
    token: {
      ...(dark ? DARK : LIGHT),
      fontFamily: FONT,
      fontFamilyCode: CODE,
      fontSize: 14,
      borderRadius: 8,
      wireframe: false,
      motion: !reducedMotion,
    },
    components: {
      Button: {
        primaryShadow: "none",
        defaultShadow: "none",
        dangerShadow: "none",
        ...(dark ? { primaryColor: "#0d1411", dangerColor: "#1d0d0b" } : {}),
      },
      Table: { headerBg: "transparent", headerSplitColor: "transparent", cellPaddingBlockSM: 9 },
      Layout: { bodyBg: "transparent", siderBg: "transparent" },
      Segmented: { trackPadding: 3 },
    },
  };
}

export type ThemeMode = "system" | "light" | "dark";
const STORAGE_KEY = "atlas.look";

export function loadThemeMode(): ThemeMode {
  const stored = localStorage.getItem(STORAGE_KEY);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function saveThemeMode(mode: ThemeMode): void {
  localStorage.setItem(STORAGE_KEY, mode);
}
